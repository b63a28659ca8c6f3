"""Target for Inferentia2 and Trainium1: programs traced by torch-neuronx 2.9."""

import importlib
import json
import shlex
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
from ...kv_cache.shapes import PADDED_WIDTHS, clip_widths, neuron_widths
from ...lint.graph_lint import lint_graph
from ...lint.graph_rules import TRACED_RULES
from ...lowering.export import lower, name_of
from ...lowering.step_graphs import ProgramShape
from ...progress import stage
from ...tensor_parallel.cores import Cores
from ..row_programs import for_rows
from ..target import NOT_SAVED, compile_again
from .detect import neuron_versions
from .functional_step import INPUTS, FunctionalStep, padding
from .model_builder import ModelBuilderWay
from .neuron_environment import with_logical_cores
from .single_trace import SingleTraceWay
from .traced_program import TracedPrograms, refuse
from .weight_formats import check_weight_formats

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
    Traces with torch-neuronx 2.9, the last version for Inf2 and Trn1. The cache stays on the device.

    With neuronx_distributed there is one program for each width and span (two for widths of prompts) over one
    cache, including trees and forwards that sample. Without it there is one program, of the widest width and
    all positions, into which every forward is padded: every token costs as much as a forward of the widest of
    *widths*, whose defaults are therefore 1, 5 and 64; every forward samples; and a saved decoder holds its
    weights twice.

    With NxD a model is divided among ``tp_degree`` cores, all driven by one process: it is not started by
    ``torchrun``.

    The cores of a process are set before it starts, as ``NEURON_RT_VISIBLE_CORES``; each of several
    models on one machine needs its own process and cores.

    Raises:
        ValueError: Required packages are not installed, or a decoder needs trees or several cores
            without NxD.
    """

    name: ClassVar[str] = "neuron-traced"

    copies_by_program: ClassVar[bool] = True

    drives_cores: ClassVar[bool] = True
    """Whether one process drives all cores of a divided model (``tp_degree``)."""

    way: str = attrs.field(default="auto", validator=validators.in_(("auto", "nxd", "trace")))
    """``"nxd"``, ``"trace"``, or ``"auto"``: the first installed one, named in a decoder's ``compiler``."""

    compiler_args: str = attrs.field(default=COMPILER_ARGS, validator=validators.instance_of(str))
    """Arguments of neuronx-cc."""

    compiler_workdir: str | None = attrs.field(
        default=None, validator=validators.optional(validators.instance_of(str))
    )
    """Folder for its logs and intermediate files. None: chosen by the compiler."""

    strict: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Lint every graph before it is compiled; breaking a known rule of neuronx-cc is an error."""

    keep_programs: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """
    With NxD, keep each program in the user's cache folder as soon as it is compiled, until 30 days after its
    last use, and compile none again that is there: what was compiled before a failure is not lost.
    """

    optimize_weight_layout: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Let the compiler lay out the weights for forwards of one token, as NxD's ModelBuilder does with a
    ``priority_model_key``; all other programs take that layout. Requires NxD, and a libneuronxla with
    ``neuron_xla_wlo_compile``.
    """

    def with_compiler_args(self, arguments: Sequence[str]) -> "TracedTarget":
        """The same target with other :attr:`compiler_args`."""
        return attrs.evolve(self, compiler_args=shlex.join(arguments))

    def require(self) -> None:
        """Refuse a machine without the packages that trace."""
        _installed(self.way)

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """1, 5, and AWS's buckets for prompts; fewer columns if one program serves every forward."""
        if _installed(self.way) is SingleTraceWay:
            return clip_widths(PADDED_WIDTHS, max_length)
        return neuron_widths(max_length)

    def compile(self, decoder: "StaticDecoder") -> None:
        """Lint, trace and compile every program, and compare with the stock model."""
        way, cores, step, top_ks = self.prepare(decoder)
        traced = way.compile(cores, step, top_ks)
        facts = {
            "way": way.name,
            "programs": [shape.name for shape in way.shapes(cores.part)],
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

    def prepare(self, decoder: "StaticDecoder") -> tuple[Way, Cores, FunctionalStep, list[int]]:
        """
        Divide *decoder* among its cores and, in strict mode, lint its graphs.

        Returns:
            The way of tracing, the cores, the module to trace, and the number of top-k calls in each graph.

        Raises:
            UnsupportedArchitecture: In strict mode, a graph breaks a rule of neuronx-cc.

            ValueError: The weights are in float8.
        """
        check_weight_formats(decoder.weights.layers.values(), self.name)
        way = self._way(decoder)
        cores, step = _divided(decoder, way)
        shapes = way.shapes(cores.part)
        if not self.strict:
            return way, cores, step, [0] * len(shapes)
        with stage(decoder.progress, "linting the graphs"):
            top_ks = _lint(cores.part, shapes, step)
        return way, cores, step, top_ks

    def check(self, manifest: Manifest) -> None:
        """Refuse another torch."""
        if manifest.versions["torch"] != torch.__version__:
            raise ValueError(
                "traced programs must be run by the torch that traced them, "
                f"{manifest.versions['torch']}: got {torch.__version__}; {_AGAIN}"
            )

    def load(self, decoder: "StaticDecoder", packages: Mapping[str, Package], trust_programs: bool) -> None:
        """Run saved programs that are trusted; compile again otherwise."""
        if not trust_programs and not all(
            trust.is_recorded(package.content) for package in packages.values()
        ):
            compile_again(self, decoder)
            return
        facts = _facts(packages)
        way = attrs.evolve(self, way=facts["way"])._way(decoder)
        # Before the part is made, which samples if the decoder does.
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
        way = _installed(self.way)
        if self.optimize_weight_layout and way is SingleTraceWay:
            raise ValueError(
                "'optimize_weight_layout' must be False without NxD, which has the layouts: got True for "
                f"way {way.name!r}"
            )
        if decoder.tree_widths and way is SingleTraceWay:
            raise ValueError(
                f"'tree_widths' must be () for way {way.name!r} of target {self.name!r}, whose one "
                f"program has no room for a tree: got {decoder.tree_widths}; way 'nxd' compiles trees"
            )
        if decoder.row_steps() and way is SingleTraceWay:
            raise ValueError(
                f"'row_widths' must be () and 'copies_rows' False for way {way.name!r} of target "
                f"{self.name!r}, whose one program feeds all rows: got {decoder.row_widths} and "
                f"{decoder.copies_rows}; way 'nxd' compiles more"
            )
        if decoder.tp_degree > 1 and way is SingleTraceWay:
            raise ValueError(
                f"'tp_degree' must be 1 for target {self.name!r} without NxD, whose program is one core's: "
                f"got {decoder.tp_degree}; TracedTarget(way='nxd') takes more, with a neuronx-distributed "
                "that has ModelBuilder v2, from https://pip.repos.neuron.amazonaws.com"
            )
        compiler_args = " ".join(with_logical_cores(self.compiler_args.split()))
        common = (compiler_args, self.compiler_workdir, self.strict)
        if way is SingleTraceWay:
            return SingleTraceWay(*common)
        return ModelBuilderWay(*common, self.keep_programs, self.optimize_weight_layout)

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
            **for_rows(decoder, runs.rows),
        )
        # An assignment would have to be compiled.
        decoder.copies_rows = decoder.copy_program is not None
        # The cache is on the device; meta tensors make reads of the host's an error.
        decoder.cache = decoder.cache.map(lambda buffer: buffer.to("meta"))
        decoder.warm_up()


def _installed(wanted: str) -> type[ModelBuilderWay] | type[SingleTraceWay]:
    """
    The way of tracing named *wanted*.

    Raises:
        ValueError: It is not installed.
    """
    # Both packages are empty stubs on the public index, so look for the functions.
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
    """Versions of the packages that a program depends on; neuronx_distributed does not tell its own."""
    names = ("torch-neuronx", "neuronx-cc", *(["neuronx-distributed"] if way.name == "nxd" else []))
    found = neuron_versions()
    return {name: found.get(name, "none") for name in names}


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
    """The cores and the module traced for them, without sampling if the device cannot do it."""
    cores = Cores.of(decoder)
    try:
        return cores, way.step(cores.part)
    except OverflowError as error:
        decoder.leave_unfused(f"the device has no int64: {error}")
    # Again, so that the part does not sample either.
    cores = Cores.of(decoder)
    return cores, way.step(cores.part)


def _lint(decoder: "StaticDecoder", shapes: Sequence[ProgramShape], step: FunctionalStep) -> list[int]:
    """Lint each graph, and return its number of top-k calls."""
    # The form that returns its cache, since a module that reassigns its buffers cannot be exported.
    functional = FunctionalStep.like(step, decoder.cache)
    top_ks = []
    for shape in shapes:
        inputs = padding(shape, decoder.cache)
        # As for XLA: attention as matrix products, not as a host kernel.
        with sdpa_kernel(SDPBackend.MATH):
            graph = lower(functional, tuple(inputs.get(name) for name in INPUTS))
        refuse(
            lint_graph(graph, TRACED_RULES), type(decoder.step.model).__name__, f"the graph of {shape.name}"
        )
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        top_ks.append(sum(name_of(node) == "topk" for node in calls))
    return top_ks
