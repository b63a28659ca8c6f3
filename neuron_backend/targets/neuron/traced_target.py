"""Decoders for Inferentia2 and Trainium1, whose programs torch-neuronx 2.9 traces."""

import importlib
import json
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import safetensors.torch
import torch
from attrs import validators
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...artifacts import trust
from ...artifacts.fingerprint import ModelFingerprint, program_fingerprint
from ...artifacts.manifest import Manifest
from ...artifacts.packages import Package
from ...kv_cache.buffers import CacheBuffers
from ...kv_cache.shapes import PADDED_WIDTHS, fitting, neuron_widths
from ...lint.graph_lint import lint_graph
from ...lowering.export import lower, name_of
from ...lowering.step_graphs import ProgramShape
from ...tensor_parallel.cores import Cores
from ..target import NOT_SAVED
from .functional_step import INPUTS, FunctionalStep, padding
from .model_builder import ModelBuilderWay
from .single_trace import SingleTraceWay
from .traced_program import TracedPrograms, refuse

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder

COMPILER_ARGS = "--enable-saturate-infinity --auto-cast=none --model-type=transformer -O1"
"""NxD's own defaults. Without ``--auto-cast=none`` the compiler rounds float32 products to bfloat16."""

_FACTS = "traced.json"
_TENSORS = "traced.safetensors"
_AGAIN = "compile_decoder(folder) compiles it again"

Way = ModelBuilderWay | SingleTraceWay


@attrs.frozen
class TracedTarget:
    """
    Traces with torch-neuronx 2.9, the last that knows Inf2 and Trn1. The cache stays on the device.

    With neuronx_distributed there is one program for each width and span over one cache, trees and
    forwards that choose among them. Without it there is one program, of the widest width and all
    positions, into which every forward is padded: every token costs what the widest of *widths*
    does, so they are 1, 5 and 64 if none are asked for; a choice is made in every forward; and a
    saved decoder holds its weights twice.

    With NxD a model is divided among ``tp_degree`` cores, all of which one process drives: it is not
    started by ``torchrun``.

    Which cores a process sees is set before it starts, as ``NEURON_RT_VISIBLE_CORES``; each of several
    models in one machine has a process and cores of its own.

    Raises:
        ValueError: What it needs is not installed, or a decoder asks for trees or for several
            cores without NxD.
    """

    name: ClassVar[str] = "neuron-traced"

    drives_cores: ClassVar[bool] = True
    """Whether one process drives all cores that hold a model together (``tp_degree``)."""

    way: str = attrs.field(default="auto", validator=validators.in_(("auto", "nxd", "trace")))
    """``"nxd"``, ``"trace"``, or the first of them that is installed. A decoder's ``compiler`` says which."""

    compiler_args: str = attrs.field(default=COMPILER_ARGS, validator=validators.instance_of(str))
    """What neuronx-cc is given."""

    compiler_workdir: str | None = attrs.field(
        default=None, validator=validators.optional(validators.instance_of(str))
    )
    """Where it leaves its logs and intermediate files. None: a place of its own."""

    strict: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Look at every graph before it is compiled; what neuronx-cc is known to refuse is an error."""

    def require(self) -> None:
        """Refuse a machine without the packages that trace."""
        _installed(self.way)

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """1, 5, and AWS's buckets for prompts; few columns where one program serves every forward."""
        if _installed(self.way) is SingleTraceWay:
            return fitting(PADDED_WIDTHS, max_length)
        return neuron_widths(max_length)

    def compile(self, decoder: "StaticDecoder") -> None:
        """Lint, trace and compile every program, and compare with the stock model."""
        way = self._way(decoder)
        cores, step = _divided(decoder, way)
        shapes = way.shapes(cores.part)
        top_ks = _lint(cores.part, shapes, step) if self.strict else [0] * len(shapes)
        traced = way.compile(cores, step, top_ks)
        facts = {
            "way": way.name,
            "programs": [shape.name for shape in shapes],
            "fingerprint": _fingerprint(cores.part),
            "weights": traced.weights,
            "versions": _versions(way),
        }
        packages = {
            way.file: Package(traced.content),
            _FACTS: Package(json.dumps(facts, indent=2).encode()),
        }
        if traced.tensors:
            packages[_TENSORS] = Package(safetensors.torch.save(traced.tensors))
        for package in packages.values():
            trust.record(package.content)
        self._run(decoder, way, traced.runs, packages, compiled=True)
        decoder.compare("the program traced for Neuron")

    def check(self, manifest: Manifest) -> None:
        """Refuse another torch."""
        if manifest.versions["torch"] != torch.__version__:
            raise ValueError(
                "traced programs must be run by the torch that traced them, "
                f"{manifest.versions['torch']}: got {torch.__version__}; {_AGAIN}"
            )

    def load(self, decoder: "StaticDecoder", packages: Mapping[str, Package], trust_programs: bool) -> None:
        """Run what was saved; compile what this machine does not know."""
        if not trust_programs and not all(
            trust.is_recorded(package.content) for package in packages.values()
        ):
            self.compile(decoder)
            return
        facts = _facts(packages)
        way = attrs.evolve(self, way=facts["way"])._way(decoder)
        # Before the part is made, which is to choose if the decoder does.
        if decoder.fusion is not None and not {shape.name for shape in way.shapes(decoder)} <= set(
            facts["programs"]
        ):
            decoder.leave_unfused(NOT_SAVED)
        cores = Cores.of(decoder)
        for what, expected, found in (
            ("fingerprint", _fingerprint(cores.part), facts["fingerprint"]),
            ("versions", _versions(way), facts["versions"]),
        ):
            if found != expected:
                raise ValueError(
                    f"traced programs must fit the decoder and what is installed: their {what} must be "
                    f"{expected}: got {found}; {_AGAIN}"
                )
        tensors = safetensors.torch.load(packages[_TENSORS].content) if _TENSORS in packages else {}
        runs = way.load(cores, packages[way.file].content, facts["weights"], tensors)
        self._run(decoder, way, runs, packages, compiled=False)

    def _way(self, decoder: "StaticDecoder") -> Way:
        chosen = _installed(self.way)
        if decoder.tree_widths and chosen is SingleTraceWay:
            raise ValueError(
                f"'tree_widths' must be () for way {chosen.name!r} of target {self.name!r}, whose one "
                f"program has no room for a tree: got {decoder.tree_widths}; way 'nxd' compiles trees"
            )
        if decoder.tp_degree > 1 and chosen is SingleTraceWay:
            raise ValueError(
                f"'tp_degree' must be 1 for target {self.name!r} without NxD, whose program is one core's: "
                f"got {decoder.tp_degree}; TracedTarget(way='nxd') takes more, with a neuronx-distributed "
                "that has ModelBuilder v2, from https://pip.repos.neuron.amazonaws.com"
            )
        return chosen(self.compiler_args, self.compiler_workdir, self.strict)

    def _run(
        self,
        decoder: "StaticDecoder",
        way: Way,
        runs: TracedPrograms,
        packages: Mapping[str, Package],
        compiled: bool,
    ) -> None:
        decoder.replace_programs(
            runs.plain,
            runs.trees,
            target=attrs.evolve(self, way=way.name),
            packages=packages,
            compiled=compiled,
            fused_programs=runs.sampling,
        )
        # The device has the cache; whoever read this one would read something else.
        decoder.cache = _without_memory(decoder.cache)
        decoder.warm_up()


def _installed(wanted: str) -> type[ModelBuilderWay] | type[SingleTraceWay]:
    """
    The way that goes by the name of *wanted*.

    Raises:
        ValueError: It is not installed.
    """
    # Both names on the public index are empty stubs: what counts is what a module has.
    missing = [
        name for name in ("trace", "move_trace_to_device") if not hasattr(_module("torch_neuronx"), name)
    ]
    if missing:
        raise ValueError(
            "target 'neuron-traced' needs torch-neuronx 2.9, from "
            "https://pip.repos.neuron.amazonaws.com: got none that has " + " and ".join(missing)
        )
    builds = all(hasattr(_module("neuronx_distributed"), name) for name in ("ModelBuilder", "NxDModel"))
    if wanted == "nxd" and not builds:
        raise ValueError(
            "way 'nxd' needs a neuronx-distributed with ModelBuilder v2, from "
            "https://pip.repos.neuron.amazonaws.com: got none"
        )
    return SingleTraceWay if wanted == "trace" or not builds else ModelBuilderWay


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _versions(way: Way) -> dict[str, str]:
    """Of what a program depends on."""
    names = ("torch_neuronx", "neuronx_distributed") if way.name == "nxd" else ("torch_neuronx",)
    return {name: str(getattr(_module(name), "__version__", "unknown")) for name in names}


def _fingerprint(decoder: "StaticDecoder") -> str:
    widest = decoder.shape.widths[-1]
    model = ModelFingerprint.of(decoder.step)
    return program_fingerprint(model, decoder.step.kind, decoder.shape, widest, decoder.spans, decoder.cache)


def _facts(packages: Mapping[str, Package]) -> dict[str, Any]:
    try:
        facts = json.loads(packages[_FACTS].content)
        complete = {"way", "programs", "fingerprint", "weights", "versions"} <= set(facts)
        files = {"nxd": ModelBuilderWay.file, "trace": SingleTraceWay.file}
        if complete and files.get(facts["way"]) in packages:
            return dict(facts)
    except (KeyError, TypeError, ValueError):
        pass
    raise ValueError(
        "a saved decoder must have its traced programs and what "
        f"{_FACTS} says of them: got {sorted(packages)}"
    )


def _divided(decoder: "StaticDecoder", way: Way) -> tuple[Cores, FunctionalStep]:
    """Its cores, and what is traced for them; without a choice that the device cannot make."""
    cores = Cores.of(decoder)
    try:
        return cores, way.step(cores.part)
    except OverflowError as error:
        decoder.leave_unfused(f"the device has no int64: {error}")
    # Made again: the part has to be without it too.
    cores = Cores.of(decoder)
    return cores, way.step(cores.part)


def _lint(decoder: "StaticDecoder", shapes: Sequence[ProgramShape], step: FunctionalStep) -> list[int]:
    """How many calls of top-k each graph has, once nothing is known against it."""
    # The form that returns its cache: exporting takes no module that replaces its own buffers.
    functional = FunctionalStep.like(step, decoder.cache)
    top_ks = []
    for shape in shapes:
        inputs = padding(shape, decoder.cache)
        # As XLA takes it: attention in matrix products, not in a kernel of the host.
        with sdpa_kernel(SDPBackend.MATH):
            graph = lower(functional, tuple(inputs.get(name) for name in INPUTS))
        refuse(lint_graph(graph), type(decoder.step.model).__name__, f"the graph of {shape.name}")
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        top_ks.append(sum(name_of(node) == "topk" for node in calls))
    return top_ks


def _without_memory(cache: CacheBuffers) -> CacheBuffers:
    return attrs.evolve(
        cache,
        keys=[tensor.to("meta") for tensor in cache.keys],
        values=[tensor.to("meta") for tensor in cache.values],
    )
