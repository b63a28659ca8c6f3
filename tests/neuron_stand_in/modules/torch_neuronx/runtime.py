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


def address(tensor: Tensor) -> int:
    """Where a tensor of the device lies in its memory."""
    from torch_xla import _XLAC

    return int(_XLAC._unsafe_buffer_pointer(tensor))


class Program:
    """A loaded program over tensors of the device; those that are states, it writes."""

    def __init__(self, recording: Recording, tensors: Mapping[str, Tensor]):
        """
        Bind a recording to weights and states.

        Raises:
            KeyError: One that it takes is missing.
        """
        import torch_xla.core.xla_builder as xb

        missing = [name for name in recording.tensors if name not in tensors]
        if missing:
            raise KeyError(f"the program takes tensors that were not given: {', '.join(missing)}")
        self.recording = recording
        self._computation = xb.computation_from_module_proto("graph", recording.proto)
        self._tensors = {name: tensors[name] for name in recording.tensors}
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
        pools = {"input": given, "tensor": self._tensors, "constant": self._constants}
        arguments = [pools[kind][name] for kind, name in self.recording.parameters]
        with torch.no_grad():
            outputs = torch_xla._XLAC._xla_user_computation("xla::graph", arguments, self._computation)
            # Written in place before anything runs, a state is donated: it stays where it is.
            for name, index in self.recording.states.items():
                self._tensors[name].copy_(outputs[index])
        torch_xla.sync()
        kept = set(self.recording.states.values())
        return [output.cpu() for index, output in enumerate(outputs) if index not in kept]
