"""Emulated device: its tensors, and programs that run over them on each core."""

import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .recording import Recording


def core_count() -> int:
    """Number of cores that this process sees. Each is a set of tensors on one XLA device."""
    return int(os.environ.get("NEURON_RT_NUM_CORES", "2"))


def to_device(tensor: Tensor) -> Tensor:
    """A copy on the device."""
    import torch_xla
    from torch_xla.core.xla_model import send_cpu_data_to_device

    if tensor.dim():
        moved = tensor.detach().to(torch_xla.device())
    else:
        # .to() makes constants of some numbers, for which a program would be compiled.
        (moved,) = send_cpu_data_to_device([tensor.detach()], torch_xla.device())
    torch_xla.sync()
    return moved


class State:
    """
    A tensor that programs write in place.

    XLA's CPU client puts a result into any donated memory of its size. So that this can only be the
    state's own, each state is a little longer than the previous.
    """

    def __init__(self, value: Tensor, index: int):
        """The *index*-th state of a model, on the device."""
        self.shape = value.shape
        self._memory = to_device(torch.cat([value.flatten(), value.new_zeros(index)]))

    @property
    def address(self) -> int:
        """Address in the device's memory."""
        from torch_xla import _XLAC

        return int(_XLAC._unsafe_buffer_pointer(self._memory))

    @property
    def value(self) -> Tensor:
        """The value, on the device."""
        # Not a view, which would make the first program that reads it compile again after a write.
        return torch.narrow_copy(self._memory, 0, 0, self.shape.numel()).reshape(self.shape)

    def write(self, value: Tensor, final: Tensor | None = None) -> None:
        """
        Write in place: the memory that a program has read is donated to its output.

        Args:
            value: The new value.

            final: Boolean on the device: False keeps the old value. None: True.
        """
        spare = value.new_zeros(self._memory.numel() - value.numel())
        written = torch.cat([value.flatten(), spare])
        self._memory.copy_(written if final is None else torch.where(final, written, self._memory))


States = dict[str, State]

resident: list[States] = []
"""For tests: states of each model on each core, in the order of loading."""


def make_states(initial: Mapping[str, Tensor]) -> States:
    """Create the states of one model on a core."""
    states = {name: State(value, index) for index, (name, value) in enumerate(initial.items())}
    resident.append(states)
    return states


class Program:
    """A loaded program over tensors of one core."""

    def __init__(self, recording: Recording, weights: Mapping[str, Tensor], states: States):
        """
        Bind a recording to weights on the device, and to states, which it writes.

        Raises:
            KeyError: A tensor is missing.

            RuntimeError: A tensor has another shape or dtype than traced.
        """
        import torch_xla.core.xla_builder as xb

        missing = [name for name in recording.tensors if name not in weights and name not in states]
        if missing:
            raise KeyError(f"the program takes tensors that were not given: {', '.join(missing)}")
        # What the compiler does for weights that it has chosen another layout of.
        weights = {
            name: to_device(tensor.transpose(0, 1).cpu()) if name in recording.transposed else tensor
            for name, tensor in weights.items()
        }
        for name, tensor in weights.items():
            found = list(tensor.shape), str(tensor.dtype)
            if name in recording.layouts and tuple(recording.layouts[name]) != found:
                raise RuntimeError(f"{name} must be as it was traced, {recording.layouts[name]}: got {found}")
        self.recording = recording
        self._computation = xb.computation_from_module_proto("graph", recording.program)
        self._weights, self._states = weights, states
        self._constants = {name: to_device(tensor) for name, tensor in recording.constants.items()}

    def empty_sums(self) -> list[Tensor]:
        """Placeholders for sums among cores that are not known yet."""
        described = (self.recording.outputs[index] for index in self.recording.partials)
        return [
            torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            for shape, dtype in described
        ]

    def __call__(self, inputs: Sequence[Tensor], sums: Sequence[Tensor], final: bool) -> list[Tensor]:
        """
        Run with these *sums* among cores; return the outputs besides the states, on the device.

        Args:
            inputs: Of the program.

            sums: Sums among cores, in order.

            final: Whether all sums are known. Only then are states written.

        Raises:
            RuntimeError: A shape or dtype differs from the traced one.
        """
        import torch_xla

        found = [(list(tensor.shape), str(tensor.dtype)) for tensor in inputs]
        if found != [(list(shape), dtype) for shape, dtype in self.recording.inputs]:
            raise RuntimeError(f"inputs must be as they were traced, {self.recording.inputs}: got {found}")
        given = {str(index): tensor.to(torch_xla.device()) for index, tensor in enumerate(inputs)}
        held = {name: state.value for name, state in self._states.items()}
        totals = {str(index): tensor.to(torch_xla.device()) for index, tensor in enumerate(sums)}
        # A Python number would be a constant of XLA, with one program per value.
        flag = torch.tensor([final]).to(torch_xla.device()) if totals else None
        pools = {
            "input": given,
            "tensor": {**self._weights, **held},
            "constant": self._constants,
            "sum": totals,
        }
        arguments = [pools[kind][name] for kind, name in self.recording.parameters]
        with torch.no_grad():
            outputs = torch_xla._XLAC._xla_user_computation("xla::graph", arguments, self._computation)
            for name, index in self.recording.states.items():
                self._states[name].write(outputs[index], flag)
        torch_xla.sync()
        kept = set(self.recording.states.values())
        return [output for index, output in enumerate(outputs) if index not in kept]


def run(programs: Sequence[Program], inputs: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """
    Run the programs of a model, one per core, and return each one's outputs, on the device.

    A sum depends only on the sums before it, so they become known one by one: every run of all cores
    makes one more of them right.

    Args:
        programs: By core.

        inputs: By core.
    """
    each = list(zip(programs, inputs, strict=True))
    sums = programs[0].empty_sums()
    first = len(programs[0].recording.outputs) - len(programs[0].recording.states) - len(sums)
    for index in range(len(sums)):
        partials = [program(own, sums, final=False)[first + index].cpu() for program, own in each]
        sums[index] = torch.stack(partials).sum(0)
    return [program(own, sums, final=True)[:first] for program, own in each]
