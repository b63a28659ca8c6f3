"""The device: tensors that live on its cores, and programs that run over them."""

import time
from collections.abc import Mapping, Sequence
from threading import Thread

import torch
from torch import Tensor

from .recording import Recording


def core_count() -> int:
    """How many cores there are. Each is a device of XLA's, which runs all together what has sums among them."""
    from torch_xla import _XLAC

    return int(_XLAC._xla_num_devices())


def to_device(tensor: Tensor, core: int = 0) -> Tensor:
    """A copy on a core."""
    moved = tensor.detach().to(_device(core))
    _start(core)
    return moved


def _device(core: int) -> torch.device:
    return torch.device("xla", core)


def _start(core: int) -> None:
    """Let a core run what has been recorded for it. It may have to wait for others, so nobody waits for it."""
    from torch_xla import _XLAC

    _XLAC._xla_step_marker(str(_device(core)), [], wait=False)


class State:
    """
    A tensor that programs write, where it lies.

    XLA's CPU client puts a result into any donated memory of its size. So that it can only be the
    state's own, each is a little longer than the last.
    """

    def __init__(self, value: Tensor, index: int, core: int):
        """The *index*-th state of a model, on a core."""
        self.shape = value.shape
        self._memory = to_device(torch.cat([value.flatten(), value.new_zeros(index)]), core)

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
"""For tests: the states of each model on each of its cores, in the order in which models were loaded."""


def make_states(initial: Mapping[str, Tensor], core: int = 0) -> States:
    """Put the states of one model on a core."""
    states = {name: State(value, index, core) for index, (name, value) in enumerate(initial.items())}
    resident.append(states)
    return states


class Program:
    """A loaded program over tensors of one core."""

    def __init__(self, recording: Recording, weights: Mapping[str, Tensor], states: States, core: int = 0):
        """
        Bind a recording to weights on a core, and to states, which it writes.

        Raises:
            KeyError: One that it takes is missing.

            RuntimeError: One is not as it was traced.
        """
        import torch_xla.core.xla_builder as xb

        missing = [name for name in recording.tensors if name not in weights and name not in states]
        if missing:
            raise KeyError(f"the program takes tensors that were not given: {', '.join(missing)}")
        for name, tensor in weights.items():
            expected = recording.layouts.get(name)
            found = (list(tensor.shape), str(tensor.dtype))
            if expected is not None and tuple(expected) != found:
                raise RuntimeError(f"{name} must be as it was traced, {expected}: got {found} on core {core}")
        self.recording, self.core = recording, core
        self._computation = xb.computation_from_module_proto("graph", recording.proto)
        self._weights, self._states = weights, states
        self._constants = {name: to_device(tensor, core) for name, tensor in recording.constants.items()}

    def record(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """
        Have it run once with what else the core does next; the outputs that become no state.

        Raises:
            RuntimeError: A shape or a dtype is not the one that was traced.
        """
        import torch_xla

        found = [(list(tensor.shape), str(tensor.dtype)) for tensor in inputs]
        if found != [(list(shape), dtype) for shape, dtype in self.recording.inputs]:
            raise RuntimeError(f"inputs must be as they were traced, {self.recording.inputs}: got {found}")
        given = {str(index): tensor.to(_device(self.core)) for index, tensor in enumerate(inputs)}
        held = {name: state.value for name, state in self._states.items()}
        pools = {"input": given, "tensor": {**self._weights, **held}, "constant": self._constants}
        arguments = [pools[kind][name] for kind, name in self.recording.parameters]
        with torch.no_grad():
            outputs = torch_xla._XLAC._xla_user_computation("xla::graph", arguments, self._computation)
            for name, index in self.recording.states.items():
                self._states[name].write(outputs[index])
        kept = set(self.recording.states.values())
        return [output for index, output in enumerate(outputs) if index not in kept]


def run(programs: Sequence[Program], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run the programs of a model, one for each core, at the same time; what the first gives, on the host."""
    import torch_xla.core.xla_model as xm

    outputs = [program.record(inputs) for program in programs]
    threads = []
    for program in programs:
        # To start a program may wait for the memory that it leaves, so for the other cores.
        threads.append(Thread(target=_start, args=(program.core,)))
        began = _executions()
        threads[-1].start()
        # Only then is it compiled, and once: two compilations would be two sums, each of one core.
        while threads[-1].is_alive() and _executions() == began:
            time.sleep(1e-4)
    for thread in threads:
        thread.join()
    found = [output.cpu() for output in outputs[0]]
    # The others are not to be running when what comes next begins.
    xm.wait_device_ops()
    return found


def _executions() -> int:
    import torch_xla.debug.metrics as metrics

    return metrics.counter_value("ExecuteComputation") or 0
