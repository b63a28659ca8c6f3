"""The device: tensors that live there, and programs that run over them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .recording import Recording


def to_device(tensor: Tensor) -> Tensor:
    """A copy on the device."""
    import torch_xla

    moved = tensor.detach().to(torch_xla.device())
    torch_xla.sync()
    return moved


class State:
    """
    A tensor that programs write, where it lies.

    XLA's CPU client puts a result into any donated memory of its size. So that it can only be the
    state's own, each is a little longer than the last.
    """

    def __init__(self, value: Tensor, index: int):
        """The *index*-th state of a model, on the device."""
        self.shape = value.shape
        self._memory = to_device(torch.cat([value.flatten(), value.new_zeros(index)]))

    @property
    def address(self) -> int:
        """Where it lies in the device's memory."""
        from torch_xla import _XLAC

        return int(_XLAC._unsafe_buffer_pointer(self._memory))

    @property
    def value(self) -> Tensor:
        """What it holds, on the device."""
        # Not a view: the first program to read one would be compiled once more when it had been written to.
        return torch.narrow_copy(self._memory, 0, 0, self.shape.numel()).reshape(self.shape)

    def write(self, value: Tensor) -> None:
        """In place: the memory that a program has read is donated to what it gives back."""
        spare = value.new_zeros(self._memory.numel() - value.numel())
        self._memory.copy_(torch.cat([value.flatten(), spare]))


States = dict[str, State]

resident: list[States] = []
"""For tests: the states of each model on the device, in the order in which models were loaded."""


def make_states(initial: Mapping[str, Tensor]) -> States:
    """Put the states of one model on the device."""
    states = {name: State(value, index) for index, (name, value) in enumerate(initial.items())}
    resident.append(states)
    return states


class Program:
    """A loaded program over tensors of the device."""

    def __init__(self, recording: Recording, weights: Mapping[str, Tensor], states: States):
        """
        Bind a recording to weights on the device, and to states, which it writes.

        Raises:
            KeyError: One that it takes is missing.
        """
        import torch_xla.core.xla_builder as xb

        missing = [name for name in recording.tensors if name not in weights and name not in states]
        if missing:
            raise KeyError(f"the program takes tensors that were not given: {', '.join(missing)}")
        self.recording = recording
        self._computation = xb.computation_from_module_proto("graph", recording.proto)
        self._weights, self._states = weights, states
        self._constants = {name: to_device(tensor) for name, tensor in recording.constants.items()}

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """
        Run; the outputs that become no state, on the host.

        Raises:
            RuntimeError: A shape or a dtype is not the one that was traced.
        """
        import torch_xla

        found = [(list(tensor.shape), str(tensor.dtype)) for tensor in inputs]
        if found != [(list(shape), dtype) for shape, dtype in self.recording.inputs]:
            raise RuntimeError(f"inputs must be as they were traced, {self.recording.inputs}: got {found}")
        given = {str(index): tensor.to(torch_xla.device()) for index, tensor in enumerate(inputs)}
        held = {name: state.value for name, state in self._states.items()}
        pools = {"input": given, "tensor": {**self._weights, **held}, "constant": self._constants}
        arguments = [pools[kind][name] for kind, name in self.recording.parameters]
        with torch.no_grad():
            outputs = torch_xla._XLAC._xla_user_computation("xla::graph", arguments, self._computation)
            for name, index in self.recording.states.items():
                self._states[name].write(outputs[index])
        torch_xla.sync()
        kept = set(self.recording.states.values())
        return [output.cpu() for index, output in enumerate(outputs) if index not in kept]
