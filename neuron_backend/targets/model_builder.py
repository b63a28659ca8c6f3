"""
Programs traced by NxD's ModelBuilder v2: one for each width and span, over one cache.

AWS Neuron SDK, `ModelBuilderV2 API Reference`; neuronx_distributed/trace/model_builder_v2.py and
trace/nxd_model/nxd_model.py, where one list of states initialises every program, and a call goes to
the program whose input shapes it has.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from torch import Tensor

from ..graphs.step_lowering import spans_of
from ..parallel.cores import Cores
from .functional_step import MODEL, ReassigningStep, padding
from .nxd_cores import nxd_cores
from .traced_program import Run, Traced, lint_proto, refuse, to_device, to_host

if TYPE_CHECKING:
    from ..static_decoder import StaticDecoder


@attrs.frozen
class ModelBuilderWay:
    """Compiles with ``neuronx_distributed``."""

    name: ClassVar[str] = "nxd"
    file: ClassVar[str] = "nxd_model.pt"

    compiler_args: str
    compiler_workdir: str | None
    strict: bool

    def step(self, decoder: "StaticDecoder") -> ReassigningStep:
        """What is traced."""
        return ReassigningStep(decoder.step, decoder.cache)

    def shapes(self, decoder: "StaticDecoder") -> list[tuple[int, int]]:
        """The width and the span of each program."""
        return [(width, span) for width in decoder.shape.widths for span in spans_of(width, decoder.spans)]

    def compile(self, cores: Cores, top_ks: Sequence[int]) -> Traced:
        """
        Trace every shape, compile all of them, and load them over one cache.

        Args:
            cores: Of an eager decoder.

            top_ks: How many calls of top-k the graph of each of :meth:`shapes` has.

        Raises:
            UnsupportedArchitecture: In strict mode, the HLO holds what the compiler is known to refuse.
        """
        decoder = cores.part
        step = self.step(decoder)
        # Before anybody moves them.
        known, states = cores.weights(step.weights, MODEL), set(step.states)
        with nxd_cores(cores.degree):
            model, used = self._built(decoder, step, top_ks)
        # A state belongs to the device alone; some releases list it among the weights.
        weights = [name for name in used if name not in states]
        content = _saved(model)
        _start(model, known, weights)
        return Traced(_runs(decoder, model), content, weights)

    def _built(
        self, decoder: "StaticDecoder", step: ReassigningStep, top_ks: Sequence[int]
    ) -> tuple[Any, dict[str, None]]:
        """The compiled programs, and the names of what they use."""
        from neuronx_distributed import ModelBuilder

        # It looks for how many cores there are here.
        builder = ModelBuilder(step)
        used: dict[str, None] = {}
        for (width, span), top_k in zip(self.shapes(decoder), top_ks, strict=True):
            tag = f"width_{width}_span_{span}"
            ids, cache_pos, slots = padding(decoder.cache, width, span)
            builder.trace(kwargs={"ids": ids, "cache_pos": cache_pos, "slots": slots}, tag=tag)
            artifacts = builder.trace_artifacts_collection[tag]
            if self.strict:
                findings = lint_proto(artifacts.hlo.SerializeToString(), top_k)
                refuse(findings, type(decoder.step.model).__name__, f"the HLO of {tag}")
            used |= dict.fromkeys(artifacts.weight_name_to_idx)
        model = builder.compile(compiler_args=self.compiler_args, compiler_workdir=self.compiler_workdir)
        return model, used

    def load(self, cores: Cores, content: bytes, weights: list[str]) -> Mapping[int, Run]:
        """
        Load what :meth:`compile` stored over these weights and an empty cache.

        Raises:
            ValueError: This release of neuronx_distributed does not know it.
        """
        from neuronx_distributed import NxDModel

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            path.write_bytes(content)
            model = NxDModel.load(str(path))
        # Where it cannot restore its own class it gives back the bare ScriptModule.
        if not isinstance(model, NxDModel):
            raise ValueError(
                "programs must be loaded by the neuronx_distributed that saved them: "
                f"got a {type(model).__name__}; compile_decoder(folder) compiles them again"
            )
        _start(model, cores.weights(self.step(cores.part).weights, MODEL), weights)
        return _runs(cores.part, model)


def _saved(model: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ModelBuilderWay.file
        model.save(str(path))
        return path.read_bytes()


def _start(model: Any, known: Sequence[Mapping[str, Tensor]], weights: list[str]) -> None:
    missing = [name for name in weights if name not in known[0]]
    if missing:
        raise ValueError(f"the model must have every weight that the programs use: got none named {missing}")
    model.set_weights([{name: own[name] for name in weights} for own in known])
    model.to_neuron()


def _runs(decoder: "StaticDecoder", model: Any) -> dict[int, Run]:
    # By how many slots a decoder asks for; a span shorter than a width has no program at that width.
    attended = {
        (width, len(decoder.cache.addresses(span))): to_device(
            decoder.cache.addresses(max(span, spans_of(width, decoder.spans)[0]))
        )
        for width in decoder.shape.widths
        for span in decoder.spans
    }

    def run(ids: Tensor, cache_pos: Tensor, slots: Tensor) -> Tensor:
        addresses = attended[ids.shape[1], len(slots)]
        return to_host(model(ids=to_device(ids), cache_pos=to_device(cache_pos), slots=addresses))

    return dict.fromkeys(decoder.shape.widths, run)
