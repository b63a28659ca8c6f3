"""
TorchNeuron's own torch.compile backend from a checkout, up to its compiler, on a CPU.

DECODEKIT_TORCH_NEURON is a folder that holds ``torch_neuronx``: a checkout of TorchNeuron, whose Python
files are imported as they are. Stubs replace what needs a device or AWS's packages: the C++ extension, the
runtime, NKI kernels and distributed process groups. Its private torch-mlir pass is left out, since stock
torch-mlir lacks it.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import torch
from torch.fx import GraphModule

VARIABLE = "DECODEKIT_TORCH_NEURON"
"""Environment variable with the folder of the checkout."""

_BACKEND = "torch_neuronx.neuron_dynamo_backend"
_STUBBED = ("torch_neuronx", "neuronxcc", "torch_mlir.dialects.stablehlo")
_PRIVATE_PASS = "torch-raw-to-neuron-backend-pipeline"


@attrs.frozen(eq=False)
class Compiled:
    """One program as TorchNeuron would hand it to neuronx-cc."""

    graph: GraphModule
    """After decompositions and every graph pass."""

    stablehlo: str
    """The module's text, with the aliases of inputs and outputs."""


@attrs.frozen(eq=False, repr=False)
class TorchNeuron:
    """The backend of a checkout; keeps what it compiles, and runs the graphs with PyTorch."""

    call: Callable[..., Any]
    """The backend for torch.compile, made by TorchNeuron's ``create_neuron_backend``."""

    table: dict[Any, Callable[..., Any]]
    """TorchNeuron's decompositions."""

    programs: list[Compiled]
    """In the order of compilation."""

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph traced by Dynamo."""
        compiled: Callable[..., Any] = self.call(graph, inputs)
        return compiled


def folder() -> Path | None:
    """The checkout, or None if the variable is not set."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None


@contextmanager
def torch_neuron(root: Path) -> Iterator[TorchNeuron]:
    """
    Import the checkout at *root* under stubs; they are removed from :data:`sys.modules` at the end.

    Raises:
        ValueError: *root* holds no TorchNeuron.
    """
    if not (root / "torch_neuronx" / "neuron_dynamo_backend" / "decompositions.py").is_file():
        raise ValueError(f"{VARIABLE} must be a checkout of TorchNeuron: got {root}")
    programs: list[Compiled] = []
    sys.modules.update(_stubs(root, programs))
    # The device, as the names of files are made of its number.
    torch.neuron = SimpleNamespace(current_device=lambda: 0, device_count=lambda: 1)
    try:
        backend = importlib.import_module(f"{_BACKEND}.backend")
        decompositions = importlib.import_module(f"{_BACKEND}.decompositions")
        _without_the_private_pass(importlib.import_module(f"{_BACKEND}.fx.fx_transform"))
        _keep_graphs(backend, programs)
        yield TorchNeuron(
            backend.create_neuron_backend(), decompositions.get_compile_decomposition_table(), programs
        )
    finally:
        del torch.neuron
        for name in [name for name in sys.modules if name.startswith(_STUBBED)]:
            del sys.modules[name]


def _without_the_private_pass(transform: Any) -> None:
    run = transform.run_pipeline_with_repro_report

    def run_public(module: Any, pipeline: str, *arguments: Any, **options: Any) -> None:
        if _PRIVATE_PASS not in pipeline:
            run(module, pipeline, *arguments, **options)

    transform.run_pipeline_with_repro_report = run_public


def _keep_graphs(backend: Any, programs: list[Compiled]) -> None:
    convert = backend._compile_fx_to_stablehlo

    def kept(graph: GraphModule, *arguments: Any, **options: Any) -> Any:
        result = convert(graph, *arguments, **options)
        programs.append(Compiled(graph, str(result[0])))
        return result

    backend._compile_fx_to_stablehlo = kept


class _CompileGraph:
    """In place of neuronx-cc."""

    def __init__(self, *arguments: Any):
        pass

    def compile(self) -> str:
        return "a program"


def _constant(value: Any, loc: Any) -> Any:
    from torch_mlir.ir import Operation

    return Operation.create("stablehlo.constant", results=[value.type], attributes={"value": value}, loc=loc)


def _executor(programs: list[Compiled]) -> Callable[..., Any]:
    def made(*arguments: Any, mutation_info: Any, **options: Any) -> Callable[..., Any]:
        graph = programs[-1].graph
        aliases = {alias.output_index: alias.parameter_number for alias in mutation_info}

        def execute(*inputs: Any) -> tuple[Any, ...]:
            """Run the graph; an output that is an alias of an input goes there, as on the device."""
            outputs = graph(*inputs)
            for output, parameter in aliases.items():
                inputs[parameter].copy_(outputs[output])
            return tuple(value for index, value in enumerate(outputs) if index not in aliases)

        return execute

    return made


def _stubs(root: Path, programs: list[Compiled]) -> dict[str, ModuleType]:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a stub of an NKI kernel must not be called")

    def namespace(name: str) -> ModuleType:
        # Without the package's own __init__, which starts the runtime.
        module = ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")))]
        return module

    def stub(name: str, **names: Any) -> ModuleType:
        module = ModuleType(name)
        module.__dict__.update(names)
        return module

    modules = [
        namespace("torch_neuronx"),
        namespace(_BACKEND),
        stub("torch_neuronx.nki_hop", wrap_nki=lambda kernel: kernel),
        stub("torch_neuronx.utils", get_logical_neuron_cores=lambda: "2"),
        stub(f"{_BACKEND}.compile", CompileGraph=_CompileGraph),
        stub(f"{_BACKEND}.executor", Executor=_executor(programs)),
        stub(
            f"{_BACKEND}.metrics",
            NeuronCompilationMetrics=SimpleNamespace,
            record_compilation=lambda metrics: None,
        ),
        stub(f"{_BACKEND}.process_group_variable"),
        # The public torch-mlir has StableHLO without its Python classes.
        stub("torch_mlir.dialects.stablehlo"),
        stub("torch_mlir.dialects.stablehlo._stablehlo_ops_gen", ConstantOp=_constant),
        stub("neuronxcc"),
        stub("neuronxcc.nki"),
        stub("neuronxcc.nki.kernels", flash_attn_bwd=refuse, flash_fwd=refuse),
        stub("neuronxcc.nki.kernels.attention", FlashConfig=refuse),
    ]
    found = {module.__name__: module for module in modules}
    for name, module in found.items():
        parent, _, own = name.rpartition(".")
        if parent in found:
            setattr(found[parent], own, module)
    return found
