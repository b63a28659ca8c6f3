"""``torch_neuronx.trace``: one graph with its weights as a ScriptModule."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .recording import CompileError, Recording, record
from .runtime import Program, make_states, run, to_device

_library = torch.library.Library("neuron_stand_in", "DEF")
_library.define("forward(Tensor[] inputs, Tensor[] tensors, Tensor program) -> Tensor[]")

# By the address of a ScriptModule's tensor; the tensors are kept alive, so that addresses stay unique.
_loaded: dict[int, tuple[Program, Tensor]] = {}
_on_device: set[int] = set()
_scripting: list[bool] = []


def trace(
    func: nn.Module,
    example_inputs: Any,
    *_: Any,
    input_output_aliases: Mapping[Tensor, int] = {},
    compiler_workdir: str | None = None,
    compiler_args: Any = None,
    partitioner_config: Any = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> torch.jit.ScriptModule:
    """As AWS documents it; weights inlined and partitions are not emulated, and no device is needed."""
    if inline_weights_to_neff or partitioner_config is not None:
        raise NotImplementedError("the stand-in keeps weights apart, and knows no partitions")
    examples = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    known = {**dict(func.named_parameters()), **dict(func.named_buffers())}
    named = {
        name: index
        for name, tensor in known.items()
        for state, index in input_output_aliases.items()
        if state is tensor
    }
    if len(named) != len(input_output_aliases):
        raise ValueError("input_output_aliases must name parameters or buffers of func")

    def aliases(_: nn.Module, tensors: Mapping[str, Tensor], outputs: list[Tensor]) -> dict[str, int]:
        for name, index in named.items():
            if outputs[index].shape != tensors[name].shape or outputs[index].dtype != tensors[name].dtype:
                raise CompileError(f"output {index} must have the shape and dtype of {name}")
        return named

    inputs = {str(index): tensor for index, tensor in enumerate(examples)}
    recording = record(func, inputs, aliases)
    if compiler_workdir is not None:
        Path(compiler_workdir).mkdir(parents=True, exist_ok=True)
        (Path(compiler_workdir) / "graph.hlo").write_text(recording.text)
        (Path(compiler_workdir) / "graph.neff").write_bytes(recording.dump())
    every = dict(func.named_parameters(remove_duplicate=False)) | dict(
        func.named_buffers(remove_duplicate=False)
    )
    return _script(_Graph(recording, [every[name].detach() for name in recording.tensors]), examples)


def move_trace_to_device(trace: torch.jit.ScriptModule, device_id: int) -> None:
    """Move the weights to the device permanently; otherwise every call would copy them."""
    if device_id != 0:
        raise RuntimeError(f"the stand-in has one core: got {device_id}")
    _on_device.add(trace.program.data_ptr())


class _Graph(nn.Module):
    def __init__(self, recording: Recording, tensors: list[Tensor]):
        super().__init__()
        self.names = recording.tensors
        for index, tensor in enumerate(tensors):
            self.register_buffer(f"tensor_{index}", tensor.clone())
        self.register_buffer("program", torch.frombuffer(bytearray(recording.dump()), dtype=torch.uint8))
        self.single = len(recording.outputs) - len(recording.states) == 1

    def forward(self, *inputs: Tensor) -> Any:
        tensors = [getattr(self, f"tensor_{index}") for index in range(len(self.names))]
        outputs = torch.ops.neuron_stand_in.forward(list(inputs), tensors, self.program)
        return outputs[0] if self.single else tuple(outputs)


def _script(graph: _Graph, examples: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
    _scripting.append(True)
    try:
        return torch.jit.trace(graph, examples, check_trace=False)
    finally:
        _scripting.pop()


@torch.library.impl(_library, "forward", "CompositeExplicitAutograd")
def _forward(inputs: list[Tensor], tensors: list[Tensor], program: Tensor) -> list[Tensor]:
    if _scripting:
        return _described(Recording.parse(program.numpy().tobytes()))
    key = program.data_ptr()
    if key not in _on_device:
        raise RuntimeError(
            "weights that are apart from the graph must be moved to the device: move_trace_to_device"
        )
    if key not in _loaded:
        recording = Recording.parse(program.numpy().tobytes())
        held = dict(zip(recording.tensors, tensors, strict=True))
        states = make_states({name: held.pop(name) for name in recording.states})
        weights = {name: to_device(tensor) for name, tensor in held.items()}
        _loaded[key] = Program(recording, weights, states), program
    return [output.cpu() for output in run([_loaded[key][0]], [inputs])[0]]


def _described(recording: Recording) -> list[Tensor]:
    """Tensors of the right shapes for torch.jit.trace."""
    kept = set(recording.states.values())
    return [
        torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        for index, (shape, dtype) in enumerate(recording.outputs)
        if index not in kept
    ]
