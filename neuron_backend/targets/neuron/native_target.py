"""Target for TorchNeuron, on Trainium2 and later: programs compiled by torch.compile."""

import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, cast

import attrs
import torch
import torch.distributed as dist
from attrs import validators
from torch.compiler._cache import CacheArtifactManager
from torch.fx import GraphModule

from ...artifacts import trust
from ...artifacts.manifest import Manifest
from ...artifacts.packages import Package
from ...kv_cache.shapes import neuron_widths
from ...lint.budget import BUDGET, lint_budget
from ...lint.graph_lint import lint_graph
from ...lowering.step_graphs import ProgramShape, lower_step, program_shapes
from ...progress import stage
from ...step import program_name
from ...tensor_parallel.process_group import start_process_group
from ..device_tensors import place_cache, place_graph
from ..row_programs import for_rows
from ..target import NOT_SAVED, compile_again
from .detect import neuron_versions, probe
from .native_program import Backend, NativeProgram, SpanProgram
from .neuron_environment import (
    CACHE_FOLDER,
    CORES,
    NO_FALLBACK,
    compiler_arguments,
    core_numbers,
    cores_of_rank,
    environment_variables,
    with_logical_cores,
)
from .weight_formats import check_weight_formats

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder

ARTIFACTS = "compiled.bin"
"""File of a saved decoder: the result of :func:`torch.compiler.save_cache_artifacts`."""

NAMES = "compiled.txt"
"""File of a saved decoder: the names of the programs in :data:`ARTIFACTS`, one per line."""

_FIRST_RELEASE = (2, 13)

_SHOWN = 5


def _as_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    if isinstance(arguments, str) or not all(isinstance(one, str) for one in arguments):
        raise ValueError(f"'compiler_args' must be a sequence of strings: got {arguments!r}")
    # TorchNeuron divides them at white space, and knows no quotes.
    if divided := [one for one in arguments if one.split() != [one]]:
        raise ValueError(f"'compiler_args' must be arguments without white space: got {divided}")
    return tuple(arguments)


def _a_list_of_cores(instance: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    core_numbers(value)


def _as_path(folder: str | PathLike[str] | None) -> str | None:
    # Absolute, since the process may change its folder before the variable is read.
    return None if folder is None else os.path.abspath(os.fspath(folder))


@attrs.frozen(kw_only=True)
class NativeTarget:
    """
    One program for each width and span (two for widths of prompts), over weights and a cache on the device.

    The model and the decoder's steps stay on the host, for :meth:`CompiledDecoder.save`,
    :meth:`CompiledDecoder.early_exit` and the comparison with the stock model; the device gets
    copies. A forward takes and returns host tensors.

    Sources: AWS Neuron SDK 2.33, TorchNeuron (the device ``neuron``; ``torch.compile`` with
    ``backend="neuron"`` and ``dynamic=False``; inputs that a graph writes into become aliases) and
    its environment variables.

    Raises:
        ValueError: An option is invalid.
    """

    name: ClassVar[str] = "neuron-native"
    copies_by_program: ClassVar[bool] = True
    largest_write: ClassVar[int] = BUDGET.scatter_indices

    strict: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """
    Whether a graph that breaks a rule of :mod:`...lint.graph_lint` or exceeds the budget of
    :mod:`...lint.budget`, or an operation that the device left to the host, is an error; otherwise it is
    a warning. If True, TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION is set too, so that the host does not run
    programs that fail on the device.
    """

    cache_folder: str | None = attrs.field(default=None, converter=_as_path)
    """
    Folder that keeps compiled programs between processes: TORCH_NEURONX_NEFF_CACHE_DIR is set to it.
    None: the variable's value, or TorchNeuron's default.
    """

    compiler_args: tuple[str, ...] = attrs.field(default=(), converter=_as_arguments)
    """Arguments of neuronx-cc, such as ``("-O1",)``, after those in NEURON_CC_FLAGS."""

    cores: str | None = attrs.field(
        default=None, validator=validators.optional([validators.instance_of(str), _a_list_of_cores])
    )
    """
    Cores of this process, such as ``"0"`` or ``"4-7"``: NEURON_RT_VISIBLE_CORES is set to it before the
    runtime starts. Models in one process share its cores, one on each *device*. With ``tp_degree``, the
    cores of all processes on this machine, one for each. None: the variable's value; if unset, all cores, or
    with ``tp_degree`` one for each process.
    """

    device: str = attrs.field(default="neuron", validator=validators.instance_of(str))
    """
    ``"neuron:0"`` is the first core of the process, ``"neuron:1"`` the second, and ``"neuron"`` the
    current one, by default the first.
    """

    backend: str | Backend = "neuron"
    """Backend of :func:`torch.compile`: a registered name, or a callable."""

    def with_compiler_args(self, arguments: Sequence[str]) -> "NativeTarget":
        """The same target with other :attr:`compiler_args`."""
        return attrs.evolve(self, compiler_args=tuple(arguments))

    def require(self) -> None:
        """Refuse a machine without TorchNeuron or without a device."""
        # PyTorch keeps the number of cores once it is asked for, and the variables are not set yet.
        self._require_device(count_cores=False)

    def start_process_group(self, timeout: timedelta) -> None:
        """
        Make the process group of the processes that share a model, and start the runtime with it.

        Raises:
            ValueError: A variable has another value than the target's, or the runtime has started.
        """
        if not self._needs_neuron:
            start_process_group(timeout)
            return
        with environment_variables(self._variables(divided=True)):
            dist.init_process_group(self.device.partition(":")[0], timeout=timeout)

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """1, 5, and AWS's buckets for prompts."""
        return neuron_widths(max_length)

    def compile(self, decoder: "StaticDecoder") -> None:
        """Compile every width and span, run each once, and compare with the stock model."""
        variables = self._variables(divided=decoder.ranks is not None)
        with environment_variables(variables), CacheArtifactManager.with_fresh_cache():
            self._require_device()
            self._put_programs(decoder, packages={}, compiled=True)
            saved = torch.compiler.save_cache_artifacts()
            if saved is not None:
                trust.record(saved[0])
                names = "\n".join(sorted(_names(decoder)))
                decoder.packages = {ARTIFACTS: Package(saved[0]), NAMES: Package(names.encode())}
            decoder.compare("the program compiled for the device")

    def check(self, manifest: Manifest) -> None:
        """Refuse other versions than those that compiled the programs, and a machine without the device."""
        here = {"torch": torch.__version__, **neuron_versions()}
        for package in ("torch", "torch-neuronx", "neuronx-cc"):
            saved, found = manifest.versions.get(package), here.get(package)
            if saved != found:
                raise ValueError(
                    f"programs must be run by the {package} that compiled them, {saved or 'none'}: "
                    f"got {found or 'none'}; compile_decoder(folder) compiles it again"
                )
        self._require_device()

    def load(self, decoder: "StaticDecoder", packages: Mapping[str, Package], trust_programs: bool) -> None:
        """
        Load the saved artifacts into the compiler's cache, and compile over it.

        Programs are traced again in any case; those that are not in the cache are compiled.
        """
        package = packages.get(ARTIFACTS)
        if package is not None and not _names(decoder) <= _saved_names(packages):
            decoder.leave_unfused(NOT_SAVED)
        known = package is not None and (trust_programs or trust.is_recorded(package.content))
        # All ranks must agree: those that compile also compare, and would wait for the others.
        agreed = known if decoder.ranks is None else decoder.ranks.all_agree(known)
        if package is None:
            self.compile(decoder)
            return
        if not agreed:
            compile_again(self, decoder)
            return
        with environment_variables(self._variables(divided=decoder.ranks is not None)):
            self._require_device()
            if torch.compiler.load_cache_artifacts(package.content) is None:
                raise ValueError(f"{ARTIFACTS} must be what this torch saves: got something else")
            self._put_programs(decoder, packages=packages, compiled=False)

    @property
    def _needs_neuron(self) -> bool:
        # PyTorch does not know the device's name until torch_neuronx has been imported.
        return self.device.partition(":")[0] == "neuron"

    def _require_device(self, count_cores: bool = True) -> None:
        if not self._needs_neuron:
            return
        found = probe(count_cores)
        if found.kind != "native" or not found.has_device:
            raise ValueError(f"target {self.name!r} needs TorchNeuron and a Neuron core: got\n{found}")
        numbers = re.match(r"(\d+)\.(\d+)", found.versions["torch-neuronx"])
        if numbers is None or tuple(map(int, numbers.groups())) < _FIRST_RELEASE:
            raise ValueError(
                f"target {self.name!r} needs torch-neuronx {'.'.join(map(str, _FIRST_RELEASE))} or later, "
                f"the first with TorchNeuron's backend of torch.compile: got\n{found}"
            )

    def _variables(self, divided: bool) -> dict[str, str]:
        # What a strict decoder of this process has set stays.
        no_fallback = "1" if self.strict else os.environ.get(NO_FALLBACK, "0")
        wanted = {
            CORES: cores_of_rank(self.cores) if divided and self._needs_neuron else self.cores,
            CACHE_FOLDER: self.cache_folder,
            NO_FALLBACK: no_fallback if self._needs_neuron else None,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    # Whatever the caller's mode: programs are compiled outside of inference mode, and write the cache there.
    @torch.inference_mode(False)
    def _put_programs(
        self, decoder: "StaticDecoder", packages: Mapping[str, Package], compiled: bool
    ) -> None:
        check_weight_formats(decoder.weights.layers.values(), self.name)
        backend = self._backend()
        shapes = program_shapes(decoder)
        graphs = []
        for number, shape in enumerate(shapes, 1):
            with stage(decoder.progress, f"lowering {shape.name}", number, len(shapes)):
                graphs.append(lower_step(shape.step, shape.width, decoder.cache, shape.span))
        with stage(decoder.progress, "linting the graphs"):
            self._lint(shapes, graphs)
        cache = place_cache(torch.device(self.device), decoder.cache)
        # With its index, since the current device may change.
        device = cache.keys[0].device
        spans: dict[str, dict[int, SpanProgram]] = {}
        for shape, graph in zip(shapes, graphs, strict=True):
            place_graph(device, graph)
            slots = decoder.cache.addresses(shape.span)
            program = SpanProgram.of(graph, slots.to(device), backend, shape.name)
            spans.setdefault(program_name(shape.step, shape.width), {})[len(slots)] = program
        programs = {name: NativeProgram(by_slots, cache.tensors, device) for name, by_slots in spans.items()}
        decoder.cache = cache
        decoder.replace_programs(
            {width: programs[program_name(decoder.step, width)] for width in decoder.shape.widths},
            {width: programs[program_name(decoder.tree_step, width)] for width in decoder.tree_widths},
            target=self,
            packages=packages,
            compiled=compiled,
            fused_programs={
                width: programs[program_name(step, width)] for step, width in decoder.fused_steps()
            },
            **for_rows(decoder, programs),
        )
        # An assignment would have to be compiled.
        decoder.copies_rows = decoder.copy_program is not None
        self._warm_up(decoder, list(programs.values()))

    def _backend(self) -> Backend:
        if not isinstance(self.backend, str):
            return self.backend
        # Imported on demand: takes a second, and only compiling needs it.
        from torch._dynamo.backends.registry import lookup_backend

        found: Any = lookup_backend(self.backend)
        return cast(Backend, found)

    def _lint(self, shapes: Sequence[ProgramShape], graphs: Sequence[GraphModule]) -> None:
        named = {shape.name: graph for shape, graph in zip(shapes, graphs, strict=True)}
        findings = [f"{name}: {finding}" for name, graph in named.items() for finding in lint_graph(graph)]
        findings += map(str, lint_budget(named))
        more = f"\n  and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
        if findings:
            self._object(
                "graphs must be within budget and hold nothing that neuronx-cc is known to refuse: got\n  "
                + "\n  ".join(findings[:_SHOWN])
                + more
            )

    def _warm_up(self, decoder: "StaticDecoder", programs: Sequence[NativeProgram]) -> None:
        # TorchNeuron lists the operations that it left to the host.
        runtime: Any = sys.modules.get("torch_neuronx")
        counts = hasattr(runtime, "get_fallback_ops")
        if counts:
            runtime.clear_op_tracking()
        # The first run of each compiles it.
        with (
            compiler_arguments(with_logical_cores(self.compiler_args)),
            stage(decoder.progress, "compiling all programs for Neuron"),
        ):
            decoder.warm_up()
        made = [program.backend for one in programs for program in one.spans.values()]
        for backend in made:
            if backend.compilations != 1:
                raise RuntimeError(
                    f"torch.compile must make one graph of {backend.name}: got {backend.compilations}; "
                    "it may be switched off by TORCHDYNAMO_DISABLE or TORCH_COMPILE_DISABLE"
                )
        left = sorted(set(runtime.get_fallback_ops())) if counts else []
        if left:
            self._object(f"the device must run every operation: got {', '.join(left)} left to the host")

    def _object(self, message: str) -> None:
        if self.strict:
            raise ValueError(f"{message}\nNativeTarget(strict=False) goes on all the same")
        warnings.warn(message, stacklevel=2)


def _names(decoder: "StaticDecoder") -> set[str]:
    """Names of its programs; those that sample are named after their chain."""
    return {shape.name for shape in program_shapes(decoder)}


def _saved_names(packages: Mapping[str, Package]) -> set[str]:
    return set(packages[NAMES].content.decode().splitlines()) if NAMES in packages else set()
