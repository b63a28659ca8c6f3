"""Decoder of fixed shapes over a Hugging Face causal LM: shapes, KV cache, and one program per width."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, Self

import attrs
import torch
from torch import Tensor

from ..decoding.forward_checks import check_inputs, check_tree_inputs
from ..decoding.protocols import DecoderShape
from .artifacts.packages import Package
from .kv_cache.buffers import CacheBuffers
from .kv_cache.geometry import Geometry
from .kv_cache.masks import MaskPlan
from .kv_cache.shapes import decoder_shape, decoder_tree_widths
from .kv_cache.spans import decoder_spans, end_position, smallest_span
from .kv_cache.tree_layout import lay_out_tree
from .models.rope_scaling import fix_rope_scaling
from .models.weights import align, copy_sharing_weights, storages_of, weight_dtype
from .on_device_sampling.fused_forwards import FusedForwards, FusedProgram
from .parity.compare import compare
from .parity.widened import compared_length, may_be_widened
from .progress import SILENT, Progress, stage
from .quantization.quantized import Weights, check_format, quantize
from .row_forwards import CopyProgram, RowForwards
from .step import DecoderStep, Step, TreeStep
from .tensor_parallel.lost_ranks import in_lockstep
from .tensor_parallel.ranks import Ranks
from .tensor_parallel.sharding import ranks_of
from .threads import on_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Program = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Ids, cache_pos and slots, as :class:`~.step.DecoderStep` takes them, to logits."""

TreeProgram = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Ids, positions, written, paths and slots, as :class:`~.step.TreeStep` takes them, to logits."""


class Compiler(Protocol):
    """What :class:`StaticDecoder` uses of the :class:`~.targets.target.Target` that made its programs."""

    @property
    def name(self) -> str:
        """The decoder's ``target``."""
        ...


class StaticDecoder(FusedForwards, RowForwards):
    """
    A decoder over any Hugging Face causal LM whose layers cache plain keys and values.

    One program per width, over one cache. A new decoder runs eagerly; a
    :class:`~.targets.target.Target` replaces its programs by compiled ones. Saving, early exit and lint are
    in :class:`~.compiled_decoder.CompiledDecoder`.
    """

    shape: DecoderShape
    """Batch size, positions, vocabulary and widths of :meth:`forward`."""

    tree_widths: tuple[int, ...]
    """Columns of the forwards over trees; empty if there are none."""

    spans: tuple[int, ...]
    """Numbers of leading positions that a forward may attend to, ascending; the last is all of them."""

    cache: CacheBuffers
    """Position-addressed keys and values."""

    programs: dict[int, Program]
    """Program of each width."""

    tree_programs: dict[int, TreeProgram]
    """Program of each tree width."""

    threads: int | None = None
    """
    Threads of a forward; None: torch's setting. 1 is fastest for a small draft model, where thread
    synchronisation outweighs compute.
    """

    ranks: Ranks | None
    """This process among the ranks that share the model; None if it holds the whole model."""

    cores: int = 1
    """Number of cores of this process that share the model (:mod:`.tensor_parallel.cores`)."""

    compiler: Compiler | None = None
    """The target that made the programs; None if they are eager."""

    compiled: bool = False
    """Whether this decoder was compiled, rather than loaded with its programs."""

    packages: dict[str, Package]
    """Compiled programs by file name, as saved; empty if there are none."""

    compared_in_float32: bool = False
    """Whether a step of 16 bits was compared with the stock model in float32 alone, when it was built."""

    borrowed: frozenset[int] = frozenset()
    """Addresses of the memory of weights that another model has too, which is not to be moved."""

    progress: Progress = SILENT
    """Is told the stages of compiling, loading and building the model."""

    def __init__(
        self,
        model: "PreTrainedModel",
        *,
        batch_size: int = 1,
        max_length: int | None = None,
        widths: Sequence[int] | None = None,
        scored_width: int | None = None,
        tree_widths: Sequence[int] = (),
        spans: Sequence[int] | None = None,
        dtype: torch.dtype | str | None = None,
        weights: str | None = None,
        progress: Progress = SILENT,
    ):
        """
        Build the decoder and compare it with *model*.

        Args:
            model: The stock model. It is not modified; weights that *dtype* or *weights* do not convert are
                shared.

            batch_size: Rows of every forward.

            max_length: Positions per row. None: 2048, or the model's own maximum if smaller.

            widths: Columns of the forwards, ascending, at most *max_length*. None: 1, 5 and 128, each
                limited to *max_length*.

            scored_width: Forwards up to this width score every column. None: the largest width
                up to 32, else the smallest.

            tree_widths: Columns of the forwards over trees, ascending, at most *max_length*. The cache gets
                one scratch slot per column of the widest.

            spans: Numbers of leading positions that a forward may attend to, ascending, the last
                *max_length*. None: powers of two from 128.

            dtype: Dtype of weights and cache: float32, bfloat16, float16 or float64, or its name.
                None: the model's own.

            weights: ``"int8"``, ``"int4"`` or ``"float8"`` quantises the linear layers of a copy of *model*,
                which the decoder is then compared with. None: not quantised.

            progress: Is told the stages (:mod:`.progress`).

        Raises:
            UnsupportedArchitecture: The logits differ from *model*'s, or its state cannot be rewound.

            ValueError: An argument is invalid.
        """
        check_format(weights)
        self.progress = progress
        if model.device.type != "cpu":
            raise ValueError(f"'model' must be on the CPU: got {model.device}")
        self.borrowed = storages_of(model)
        model = copy_sharing_weights(model, weight_dtype(dtype))
        if weights is not None:
            with stage(progress, f"quantising the weights to {weights}"):
                quantize(model, weights)
        align(model)
        # Its error message about unsupported layers is more specific than Geometry's.
        MaskPlan.of(model)
        geometry = Geometry.of(model)
        shape = decoder_shape(
            model.config,
            vocab_size=geometry.vocab_size,
            batch_size=batch_size,
            max_length=max_length,
            widths=widths,
            scored_width=scored_width,
        )
        self._assemble(model, geometry, shape, tree_widths, spans)
        self.compared_in_float32 = self._compare_widened()
        if not self.compared_in_float32:
            self.compare("the eager step")

    @classmethod
    def unchecked(
        cls,
        model: "PreTrainedModel",
        shape: DecoderShape,
        tree_widths: Sequence[int] = (),
        spans: Sequence[int] | None = None,
    ) -> Self:
        """
        A decoder over *model* itself, in evaluation mode, without the comparison with the stock model.

        Raises:
            ValueError: *shape*, *tree_widths* or *spans* are invalid for *model*.
        """
        geometry = Geometry.of(model)
        possible = decoder_shape(model.config, **{**attrs.asdict(shape), "vocab_size": geometry.vocab_size})
        if possible != shape:
            raise ValueError(
                f"'vocab_size' must be the model's, {possible.vocab_size}: got {shape.vocab_size}"
            )
        decoder = cls.__new__(cls)
        decoder._assemble(model, geometry, shape, tree_widths, spans)
        return decoder

    @classmethod
    def without_model(
        cls,
        geometry: Geometry,
        shape: DecoderShape,
        tree_widths: Sequence[int],
        spans: Sequence[int],
        build: Callable[[], "PreTrainedModel"],
    ) -> Self:
        """
        A decoder without a model, whose programs are set by :meth:`replace_programs`.

        Args:
            geometry: Geometry of the model.

            shape: A shape that *geometry* allows.

            tree_widths: Columns of the forwards over trees.

            spans: Numbers of leading positions that a forward may attend to.

            build: Builds the model, in evaluation mode, when it is first needed: for saving, early exit,
                :attr:`weights`, ...

        Raises:
            ValueError: *tree_widths* or *spans* are invalid.
        """
        decoder = cls.__new__(cls)

        def built() -> "PreTrainedModel":
            with stage(decoder.progress, "building the model"):
                return build()

        decoder._lay_out(geometry, shape, tree_widths, spans, built)
        return decoder

    def _assemble(
        self,
        model: "PreTrainedModel",
        geometry: Geometry,
        shape: DecoderShape,
        tree_widths: Sequence[int],
        spans: Sequence[int] | None,
    ) -> None:
        self._lay_out(geometry, shape, tree_widths, spans, lambda: model)
        fix_rope_scaling(model, shape.max_length)
        self.ranks = ranks_of(model)
        self.programs = dict.fromkeys(shape.widths, partial(self._eager, self.step))
        self.tree_programs = dict.fromkeys(self.tree_widths, partial(self._eager, self.tree_step))

    def _lay_out(
        self,
        geometry: Geometry,
        shape: DecoderShape,
        tree_widths: Sequence[int],
        spans: Sequence[int] | None,
        build: Callable[[], "PreTrainedModel"],
    ) -> None:
        tree_widths = decoder_tree_widths(tree_widths, shape.max_length)
        self.spans = decoder_spans(spans, shape.max_length)
        self.shape = shape
        self.tree_widths = tree_widths
        self._build = build
        self.ranks = None
        scratch = max(tree_widths, default=0)
        self.cache = CacheBuffers.zeros(geometry, shape.batch_size, shape.max_length, scratch)
        self.row_programs = {}
        self._slots = {span: self.cache.addresses(span) for span in self.spans}
        self.packages = {}

    @cached_property
    def step(self) -> DecoderStep:
        """The step of the programs for token sequences. A loaded decoder builds its model for this."""
        return DecoderStep(self._build(), self.shape.scored_width)

    @cached_property
    def tree_step(self) -> TreeStep:
        """The step of the programs for trees."""
        return TreeStep(self.step.model)

    @property
    def model_config(self) -> Any:
        """The config of the stock model. A loaded decoder builds its model for this."""
        return self.step.model.config

    @property
    def generation_config(self) -> Any:
        """The generation config of the stock model. A loaded decoder builds its model for this."""
        return self.step.model.generation_config

    @property
    def tp_degree(self) -> int:
        """Number of processes, or of cores of this process, that share the model."""
        return self.cores if self.ranks is None else self.ranks.degree

    @property
    def in_lockstep(self) -> bool:
        """Whether other processes must make the same forwards (:mod:`.tensor_parallel.ranks`)."""
        return self.ranks is not None

    @property
    def target(self) -> str:
        """Name of the target of the programs; ``"eager"`` if they are not compiled."""
        return "eager" if self.compiler is None else self.compiler.name

    @property
    def weights(self) -> Weights:
        """How the weights are stored: format of each layer, matrices not quantised and why, bytes."""
        return Weights.of(self.step.model)

    def forward(self, ids: Tensor, cache_pos: Tensor, span: int | None = None) -> Tensor:
        """
        Feed *ids*: write their keys and values into the cache and return the logits of the next tokens.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of ``shape.widths``;
                -1 is padding, anywhere in a row.

            cache_pos: Position of the first column of each row, ``[batch]`` int64.

            span: One of :attr:`spans`: number of leading positions attended to. None: the smallest that
                holds every token of this forward.

        Returns:
            Logits ``[batch, width, vocab]`` float32, or ``[batch, 1, vocab]`` of the last
            column when *width* exceeds ``shape.scored_width``.

        Raises:
            ValueError: A wrong width, batch, id or position, or ids that differ from another rank's.
                Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.

            LostRank: Another process that shares the model has ended.
        """
        check_inputs(ids, cache_pos, self.shape)
        slots = self._slots[smallest_span(self.spans, end_position(ids, cache_pos), span)]
        with on_threads(self.threads), in_lockstep(self.ranks, ids, cache_pos, slots[-1:]):
            return self.programs[ids.shape[1]](ids, cache_pos, slots)

    def forward_tree(
        self, ids: Tensor, cache_pos: Tensor, parents: Tensor, span: int | None = None
    ) -> Tensor:
        """
        Feed a token tree and return the logits after each column.

        Keys and values of columns off the first branch are written to scratch slots, which no other forward
        attends to.

        Args:
            ids: Tokens, ``[batch, width]`` int64, *width* one of :attr:`tree_widths`; -1 is
                padding, after the tokens of its row.

            cache_pos: Position of the root columns, ``[batch]`` int64.

            parents: Parent column of each, ``[batch, width]`` int64; -1 for a root.

            span: As in :meth:`forward`.

        Returns:
            Logits ``[batch, width, vocab]`` float32.

        Raises:
            ValueError: A wrong width, batch, id, parent or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        check_tree_inputs(ids, cache_pos, parents, self.shape, self.tree_widths)
        layout = lay_out_tree(ids, cache_pos, parents)
        slots = self._slots[smallest_span(self.spans, int(layout[0].max()) + 1, span)]
        with on_threads(self.threads), in_lockstep(self.ranks, ids, *layout, slots[-1:]):
            return self.tree_programs[ids.shape[1]](ids, *layout, slots)

    def steps(self) -> list[tuple[Step, int]]:
        """Step and width of each program."""
        trees: list[tuple[Step, int]] = [(self.tree_step, width) for width in self.tree_widths]
        return [(self.step, width) for width in self.shape.widths] + trees + self.fused_steps()

    def fused_steps(self) -> list[tuple[Step, int]]:
        """Step and width of each program that samples as well."""
        if self.fusion is None:
            return []
        return [(self.fusion.step, width) for width in self.fusion.widths]

    def replace_programs(
        self,
        programs: Mapping[int, Program],
        tree_programs: Mapping[int, TreeProgram],
        *,
        target: Compiler,
        packages: Mapping[str, Package],
        compiled: bool,
        fused_programs: Mapping[int, FusedProgram] | None = None,
        row_programs: Mapping[int, Sequence[Program]] | None = None,
        copy_program: CopyProgram | None = None,
    ) -> None:
        """
        Replace the programs of all forwards.

        Args:
            programs: One per width.

            tree_programs: One per tree width.

            target: The target that made them.

            packages: What is saved, by file name.

            compiled: Whether they were compiled, rather than loaded.

            fused_programs: One per :meth:`fused_steps`; without them, sampling runs on the host.

            row_programs: For each of :attr:`row_widths` one per row; without them, rows are not fed by
                themselves.

            copy_program: Copies rows; without it, they are copied by assignment, if they are.
        """
        self.programs = dict(programs)
        self.tree_programs = dict(tree_programs)
        self.fused_programs = dict(fused_programs or {})
        self.row_programs = dict(row_programs or {})
        self.row_widths = tuple(self.row_programs)
        self.copy_program = copy_program
        self.compiler = target
        self.packages = dict(packages)
        self.compiled = compiled

    def compare(self, whose: str) -> None:
        """
        Compare with the stock model, as :func:`~.parity.compare.compare`.

        Raises:
            UnsupportedArchitecture: The logits differ. *whose* names this decoder in the message.
        """
        with stage(self.progress, f"comparing {whose} with the stock model"):
            compare(self, whose)

    def warm_up(self, spans: Sequence[int] | None = None) -> None:
        """
        Run every program once on padding.

        Args:
            spans: Spans to run with. None: all.
        """
        spans = self.spans if spans is None else spans
        rows = self.shape.batch_size
        start = torch.zeros(rows, dtype=torch.int64)
        for number, span in enumerate(spans, 1):
            with stage(self.progress, f"running programs over {span} positions", number, len(spans)):
                for width in self.shape.widths:
                    self.forward(torch.full((rows, width), -1), start, span)
                for width in self.tree_widths:
                    padding = torch.full((rows, width), -1)
                    self.forward_tree(padding, start, padding, span)
                for width in self.row_widths:
                    self.forward_row(torch.full((1, width), -1), start[:1], 0, span)
                if self.copies_rows:
                    self.copy_rows(torch.arange(rows), span)
        self.warm_up_sampling(spans)

    def _eager(self, step: Step, *inputs: Tensor) -> Any:
        # Not inference_mode, whose tensors callers could not modify in place.
        with torch.no_grad():
            return step(*inputs, *self.cache.tensors)

    def _compare_widened(self) -> bool:
        """Compare a step of 16 bits in float32, whose rounding hides no error; whether it was."""
        model = self.step.model
        if not may_be_widened(model):
            return False
        shape = self.shape
        with stage(self.progress, "comparing the step in float32 with the stock model"):
            StaticDecoder(
                model,
                batch_size=shape.batch_size,
                max_length=compared_length(shape, self.step.plan.span, self.tree_widths),
                widths=shape.widths,
                scored_width=shape.scored_width,
                tree_widths=self.tree_widths,
                dtype=torch.float32,
            )
        return True
