"""Target for NVIDIA GPUs: CUDA graphs, one for each width and span."""

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from attrs import validators
from torch.fx import GraphModule

from ...artifacts.manifest import Manifest
from ...artifacts.packages import Package
from ...kv_cache.shapes import DEFAULT_WIDTHS, clip_widths
from ...lowering.step_graphs import program_shapes
from ...models.fused_projections import fuse_projections
from ...progress import stage
from ...step import program_name
from ..compiler_cache import private_compiler_cache
from ..device_tensors import on_device
from ..neuron.native_program import Backend, OnceBackend
from ..row_programs import for_rows
from ..target import NOT_SAVED
from .cuda_recording import Recording
from .cuda_runtime import CudaRuntime, Gpu, Runtime

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder

FACTS = "cuda.json"
"""File of a saved decoder: the GPU and the names of its programs, which are recorded again on loading."""

FLOAT8 = (8, 9)
"""The lowest compute capability with 8-bit floats."""

_AS_INDUCTOR_SHOULD = {
    # The target records the whole step itself.
    "triton.cudagraphs": False,
    # Indices are checked before a forward. In torch 2.11 the check within a kernel also fails for the lanes
    # beyond its rows (five columns of two rows, sampled), and no kernel of the process runs afterwards.
    "assert_indirect_indexing": False,
}


def _as_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(options, Mapping) or options.get("triton.cudagraphs"):
        raise ValueError(f"'options' must be a mapping without triton.cudagraphs: got {options!r}")
    return dict(options)


@attrs.frozen(kw_only=True)
class CudaTarget:
    """
    One CUDA graph for each width and span, over weights and a cache on the GPU.

    The model and the decoder's steps stay on the host, for :meth:`CompiledDecoder.save`,
    :meth:`CompiledDecoder.early_exit` and the comparison with the stock model; the GPU gets copies. A
    forward takes and returns host tensors; of a forward that samples, only the sampled tokens are copied
    to the host.

    All graphs are recorded when the decoder is compiled. They share one memory pool, as large as the
    largest of them needs, one buffer for inputs and one for logits.

    Raises:
        ValueError: An option is invalid.
    """

    name: ClassVar[str] = "cuda"
    copies_by_program: ClassVar[bool] = False

    device: str = attrs.field(default="cuda", validator=validators.instance_of(str))
    """
    ``"cuda:0"`` is the first GPU, ``"cuda"`` the current one; under torchrun, if the program has not chosen
    one, the one numbered LOCAL_RANK, if the process sees so many.
    """

    backend: str | Backend | None = "inductor"
    """
    Backend of :func:`torch.compile` for each part of a step before it is recorded: a name or a callable.
    None: the step's operations are recorded uncompiled.
    """

    options: Mapping[str, Any] = attrs.field(factory=dict, converter=_as_options)
    """Options of Inductor, such as ``{"max_autotune": True}``, which override the target's own."""

    max_graphs: int = attrs.field(default=128, validator=[validators.instance_of(int), validators.ge(1)])
    """Maximum number of graphs. Each takes some megabytes, and seconds to compile."""

    runtime: Runtime = attrs.field(factory=CudaRuntime, repr=False)
    """Allocates memory and records graphs."""

    def require(self) -> None:
        """Refuse a machine without a GPU."""
        require_gpu(self.runtime)

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """1, 5 and 128."""
        return clip_widths(DEFAULT_WIDTHS, max_length)

    def compile(self, decoder: "StaticDecoder") -> None:
        """Compile and record every width and span, and compare with the stock model."""
        self.record(decoder)
        decoder.compare("the program recorded for the GPU")

    def check(self, manifest: Manifest) -> None:
        """Refuse another torch, and a machine without a GPU."""
        if manifest.versions["torch"] != torch.__version__:
            raise ValueError(
                f"a decoder must be run by the torch that made it, {manifest.versions['torch']}: "
                f"got {torch.__version__}; compile_decoder(folder) makes it again"
            )
        require_gpu(self.runtime)

    def load(self, decoder: "StaticDecoder", packages: Mapping[str, Package], trust_programs: bool) -> None:
        """
        Compile and record again. No native code is saved, so *trust_programs* has no effect.

        Raises:
            ValueError: It was compiled on another kind of GPU, or for another CUDA version.
        """
        saved = _facts(packages)
        here = self.runtime.gpu(self.runtime.device(self.device))
        if saved["gpu"] != _of_gpu(here):
            raise ValueError(
                f"a decoder must be run on the kind of GPU that it was made on, {saved['gpu']}: "
                f"got {_of_gpu(here)}; compile_decoder(folder) makes it again"
            )
        if not _names(decoder) <= set(saved["programs"]):
            decoder.leave_unfused(NOT_SAVED)
        self.record(decoder)

    def record(self, decoder: "StaticDecoder") -> None:
        """Compile and record every width and span, and run each once, without a comparison."""
        require_gpu(self.runtime)
        device = self.runtime.device(self.device)
        gpu = self.runtime.gpu(device)
        shapes = program_shapes(decoder, prompt_spans=True)
        self._check(decoder, gpu, len(shapes))
        fused = fuse_projections(decoder.step.model)
        for step in (decoder.step, decoder.tree_step, decoder.row_step):
            step.fused = fused
        with private_compiler_cache(), torch.inference_mode(False), torch.no_grad(), on_device(device):
            compiled = partial(self.compile_graph, tuned=bool(decoder.weights.layers))
            recording = Recording.of(decoder, device, self.runtime, compiled, shapes)
            # The largest first: the others then fit into its memory pool.
            largest = sorted(shapes, key=lambda shape: shape.width * shape.span, reverse=True)
            replays = {}
            for number, shape in enumerate(largest, 1):
                with stage(decoder.progress, f"compiling {shape.name}", number, len(largest)):
                    replays[shape.name] = recording.record(shape)
        programs = recording.programs(replays)
        decoder.cache = recording.cache
        facts = {"gpu": _of_gpu(gpu), "programs": sorted(_names(decoder))}
        decoder.replace_programs(
            {width: programs[program_name(decoder.step, width)] for width in decoder.shape.widths},
            {width: programs[program_name(decoder.tree_step, width)] for width in decoder.tree_widths},
            target=self,
            packages={FACTS: Package(json.dumps(facts).encode())},
            compiled=True,
            fused_programs={
                width: programs[program_name(step, width)] for step, width in decoder.fused_steps()
            },
            **for_rows(decoder, programs),
        )
        decoder.warm_up()

    def _check(self, decoder: "StaticDecoder", gpu: Gpu, graphs: int) -> None:
        if graphs > self.max_graphs:
            raise ValueError(
                f"widths, row_widths and spans must make at most {self.max_graphs} programs: got {graphs}; "
                "pass fewer, or CudaTarget(max_graphs=...)"
            )
        if "float8" in decoder.weights.layers.values() and gpu.capability < FLOAT8:
            raise ValueError(
                f"weights='float8' needs a GPU of compute capability {_dotted(FLOAT8)} or more: "
                f"got {gpu.name}, {_dotted(gpu.capability)}; 'int8' takes as many bytes"
            )

    def compile_graph(self, graph: GraphModule, name: str, tuned: bool = False) -> Any:
        """
        *graph*, which is on the device, compiled by the backend if there is one.

        Args:
            graph: The graph.

            name: Its name in errors.

            tuned: Whether Inductor tunes its loops, which takes three times as long: for weights in few
                bits, whose products are loops. On an H200, int8 products of one row take a quarter less
                time with it, and bfloat16's are cuBLAS's.
        """
        if self.backend is None:
            return graph
        backend: Any = self.backend
        if isinstance(backend, str):
            # Imported on demand: takes a second, and only compiling needs it.
            from torch._dynamo.backends.registry import lookup_backend

            backend = lookup_backend(backend)
        if self.backend == "inductor":
            patches = {**_AS_INDUCTOR_SHOULD, "coordinate_descent_tuning": tuned, **self.options}
            backend = partial(backend, config_patches=patches)
        return torch.compile(graph, backend=OnceBackend(backend, name), fullgraph=True, dynamic=False)


def cuda_target() -> CudaTarget:
    """
    The target with its defaults.

    Raises:
        ValueError: There is no GPU.
    """
    require_gpu(CudaRuntime())
    return CudaTarget()


def require_gpu(runtime: Runtime) -> None:
    """
    Refuse a machine without a GPU.

    Raises:
        ValueError: It has none, or a torch that cannot use it.
    """
    lack = runtime.lack()
    if lack is not None:
        raise ValueError(f"target 'cuda' needs a CUDA GPU, and a torch that is built for it: got {lack}")


def _names(decoder: "StaticDecoder") -> set[str]:
    """Names of its programs; those that sample are named after their chain."""
    return {shape.name for shape in program_shapes(decoder, prompt_spans=True)}


def _facts(packages: Mapping[str, Package]) -> dict[str, Any]:
    if FACTS not in packages:
        raise ValueError(
            f"a decoder saved by target 'cuda' must have programs/{FACTS}: got {sorted(packages)}"
        )
    facts: dict[str, Any] = json.loads(packages[FACTS].content)
    return facts


def _of_gpu(gpu: Gpu) -> dict[str, str]:
    return {"name": gpu.name, "capability": _dotted(gpu.capability), "cuda": gpu.cuda}


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
