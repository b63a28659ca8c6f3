"""Decoders whose programs are CUDA graphs, one for each width and span."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor
from torch.fx import GraphModule

from ...artifacts.manifest import Manifest
from ...artifacts.packages import Package
from ...kv_cache.buffers import CacheBuffers
from ...kv_cache.shapes import DEFAULT_WIDTHS, fitting
from ...lowering.export import without_known_warnings
from ...lowering.step_graphs import ProgramShape, program_shapes
from ...models.fused_projections import fuse_projections
from ...step import program_name
from ..device_tensors import on_device, place_graph
from ..neuron.native_program import Backend, OnceBackend
from ..target import NOT_SAVED
from .cuda_program import CudaProgram, StagingBuffers
from .cuda_runtime import CudaRuntime, Gpu, Recorder, Replay, Runtime
from .cuda_staging import TensorSpec, size_of, tensors_in
from .cuda_step import lower_for_cuda

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder

FACTS = "cuda.json"
"""A package: the GPU, and what its programs were called. They themselves are recorded anew."""

FLOAT8 = (8, 9)
"""The least compute capability that has 8-bit floats."""

_AS_INDUCTOR_SHOULD = {
    # A product with one row is then a loop over the weights, in whatever they are stored.
    "coordinate_descent_tuning": True,
    # The whole step is recorded, and by us.
    "triton.cudagraphs": False,
}


def _as_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(options, Mapping) or options.get("triton.cudagraphs"):
        raise ValueError(f"'options' must be a mapping without triton.cudagraphs: got {options!r}")
    return dict(options)


@attrs.frozen(kw_only=True)
class CudaTarget:
    """
    One CUDA graph for each width and span, over weights and a cache that lie on the GPU.

    The model and the decoder's steps stay on the host, for :meth:`CompiledDecoder.save`,
    :meth:`CompiledDecoder.early_exit` and the comparison with the stock model; the GPU gets copies. A
    forward takes and gives tensors of the host; of a forward that chooses, only the choice comes
    to the host.

    All graphs are recorded when the decoder is made. They share one pool of memory, as large as the
    hungriest of them, and one place for inputs and one for logits.

    Raises:
        ValueError: An option breaks its rule.
    """

    name: ClassVar[str] = "cuda"

    device: str = attrs.field(default="cuda", validator=validators.instance_of(str))
    """
    ``"cuda:0"`` is the first GPU, and ``"cuda"`` the current one; with ``tp_degree`` > 1, the one of
    the number that torchrun gives to a process of a host, LOCAL_RANK.
    """

    backend: str | Backend | None = "inductor"
    """
    What :func:`torch.compile` is given to compile a step before it is recorded: the name of a
    backend, or one itself. None: the step's operations are recorded as they are.
    """

    options: Mapping[str, Any] = attrs.field(factory=dict, converter=_as_options)
    """Of Inductor, such as ``{"max_autotune": True}``, over the ones that are set here."""

    max_graphs: int = attrs.field(default=128, validator=[validators.instance_of(int), validators.ge(1)])
    """How many graphs there may be. Each takes some megabytes, and seconds or a minute to compile."""

    runtime: Runtime = attrs.field(factory=CudaRuntime, repr=False)
    """What allocates and records."""

    def require(self) -> None:
        """Refuse a machine without a GPU."""
        require_gpu(self.runtime)

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """1, 5 and 128."""
        return fitting(DEFAULT_WIDTHS, max_length)

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
        Compile and record again. No native code is saved, so none has to be trusted.

        Raises:
            ValueError: It was made on another kind of GPU, or for another CUDA.
        """
        saved = _facts(packages)
        here = self.runtime.gpu(self._device(decoder))
        if saved["gpu"] != _of_gpu(here):
            raise ValueError(
                f"a decoder must be run on the kind of GPU that it was made on, {saved['gpu']}: "
                f"got {_of_gpu(here)}; compile_decoder(folder) makes it again"
            )
        if not _names(decoder) <= set(saved["programs"]):
            decoder.leave_unfused(NOT_SAVED)
        self.record(decoder)

    def _device(self, decoder: "StaticDecoder") -> torch.device:
        return self.runtime.device(self.device, decoder.ranks is not None)

    def record(self, decoder: "StaticDecoder") -> None:
        """Compile and record every width and span, run each once, and compare nothing."""
        require_gpu(self.runtime)
        device = self._device(decoder)
        gpu = self.runtime.gpu(device)
        shapes = program_shapes(decoder)
        self._check(decoder, gpu, len(shapes))
        fused = fuse_projections(decoder.step.model)
        for step in (decoder.step, decoder.tree_step):
            step.fused = fused
        with torch.inference_mode(False), torch.no_grad(), on_device(device):
            recording = _Recording.of(self, decoder, device, shapes)
            # The hungriest first: the others then find room in the pool.
            largest = sorted(shapes, key=lambda shape: shape.width * shape.span, reverse=True)
            replays = {shape.name: recording.record(shape) for shape in largest}
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
        )
        decoder.warm_up()

    def _check(self, decoder: "StaticDecoder", gpu: Gpu, graphs: int) -> None:
        if graphs > self.max_graphs:
            raise ValueError(
                f"widths and spans must make at most {self.max_graphs} programs: got {graphs}; pass fewer, "
                "or CudaTarget(max_graphs=...)"
            )
        if "float8" in decoder.weights.layers.values() and gpu.capability < FLOAT8:
            raise ValueError(
                f"weights='float8' needs a GPU of compute capability {_dotted(FLOAT8)} or more: "
                f"got {gpu.name}, {_dotted(gpu.capability)}; 'int8' takes as many bytes"
            )

    def run_of(self, graph: GraphModule, name: str) -> Any:
        """What runs *graph*, which lies on the device: compiled, once, or as it is."""
        if self.backend is None:
            return graph
        backend: Any = self.backend
        if isinstance(backend, str):
            # Takes a second to import, and only who compiles needs it.
            from torch._dynamo.backends.registry import lookup_backend

            backend = lookup_backend(backend)
        if self.backend == "inductor":
            backend = partial(backend, config_patches=_AS_INDUCTOR_SHOULD | dict(self.options))
        return torch.compile(graph, backend=OnceBackend(backend, name), fullgraph=True, dynamic=False)


@attrs.frozen(eq=False)
class _Recording:
    """A decoder's programs while they are recorded."""

    target: CudaTarget
    decoder: "StaticDecoder"
    recorder: Recorder
    exchange: StagingBuffers
    cache: CacheBuffers

    @classmethod
    def of(
        cls,
        target: CudaTarget,
        decoder: "StaticDecoder",
        device: torch.device,
        shapes: Sequence[ProgramShape],
    ) -> "_Recording":
        runtime = target.runtime
        inputs = max(size_of(_given(decoder, shape)) for shape in shapes)
        outputs = max(size_of(_made(decoder, shape)) for shape in shapes)
        exchange = StagingBuffers.of(device, runtime, inputs, outputs)
        return cls(target, decoder, runtime.recorder(device), exchange, _empty(device, decoder.cache))

    def record(self, shape: ProgramShape) -> Replay:
        """Warm up and record one program, over padding."""
        decoder, exchange = self.decoder, self.exchange
        given, made = _given(decoder, shape), _made(decoder, shape)
        graph = lower_for_cuda(shape.step, shape.width, shape.span, decoder.cache, made)
        place_graph(exchange.device, graph)
        program = self.target.run_of(graph, shape.name)
        slots = decoder.cache.addresses(shape.span).to(exchange.device)
        arguments = (
            *tensors_in(exchange.outputs.device, made),
            *tensors_in(exchange.inputs.device, given),
            slots,
            *self.cache.tensors,
        )
        for place, tensor in zip(
            tensors_in(exchange.inputs.host, given), _padding(decoder, shape), strict=True
        ):
            place.copy_(tensor)
        exchange.inputs.up(size_of(given))
        with without_known_warnings():
            replay = self.recorder.record(partial(program, *arguments))
        return _Kept(replay, (program, arguments))

    def programs(self, replays: Mapping[str, Replay]) -> dict[str, CudaProgram]:
        """One for each step and width, over all of its spans."""
        shapes: dict[str, list[ProgramShape]] = {}
        for shape in program_shapes(self.decoder):
            shapes.setdefault(program_name(shape.step, shape.width), []).append(shape)
        reserved = self.cache.reserved
        return {
            name: CudaProgram(
                self.exchange,
                {reserved + shape.span: replays[shape.name] for shape in spans},
                _given(self.decoder, spans[0]),
                _made(self.decoder, spans[0]),
            )
            for name, spans in shapes.items()
        }


@attrs.frozen(eq=False)
class _Kept:
    """A recorded program, and what must live for as long: kernels, constants, and memory that it uses."""

    replay: Replay
    kept: object

    def __call__(self) -> None:
        self.replay()


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


def _padding(decoder: "StaticDecoder", shape: ProgramShape) -> tuple[Tensor, ...]:
    """What the step takes before slots and cache, over padding alone."""
    inputs = shape.step.padding(shape.width, decoder.cache, shape.span)
    return inputs[: -1 - len(decoder.cache.tensors)]


def _given(decoder: "StaticDecoder", shape: ProgramShape) -> list[TensorSpec]:
    return [TensorSpec.of(tensor) for tensor in _padding(decoder, shape)]


def _made(decoder: "StaticDecoder", shape: ProgramShape) -> list[TensorSpec]:
    of, step = decoder.shape, shape.step
    columns = 1 if step is not decoder.tree_step and shape.width > of.scored_width else shape.width
    logits = TensorSpec((of.batch_size, columns, of.vocab_size), torch.float32)
    can_sample = decoder.fusion is not None and step is decoder.fusion.step
    return [TensorSpec((of.batch_size, columns), torch.int64), logits] if can_sample else [logits]


def _empty(device: torch.device, cache: CacheBuffers) -> CacheBuffers:
    def buffers(like: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros(buffer.shape, dtype=buffer.dtype, device=device) for buffer in like]

    return CacheBuffers(keys=buffers(cache.keys), values=buffers(cache.values), reserved=cache.reserved)


def _names(decoder: "StaticDecoder") -> set[str]:
    """Of its programs: those that choose are named after their chain."""
    return {shape.name for shape in program_shapes(decoder)}


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
