"""A Hugging Face causal LM as a decoder of fixed shapes."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, Self

import attrs
import torch
from torch import Tensor

from ..decoding.checks import check_inputs, check_tree_inputs, check_tree_widths
from ..decoding.protocols import DecoderShape
from ..decoding.validation import as_tuple
from .artifacts.packages import Package
from .kv_cache.buffers import CacheBuffers, lay_out_tree
from .kv_cache.geometry import Geometry
from .kv_cache.masks import MaskPlan
from .kv_cache.shapes import decoder_shape
from .kv_cache.spans import decoder_spans, end_of, smallest_span
from .models.rotation import fix_rotation
from .models.weights import adopt, weight_dtype
from .on_device_sampling.fused_forwards import FusedForwards, FusedProgram
from .parity.compare import compare
from .quantization.quantized import Weights, check_format, quantize
from .step import DecoderStep, Step, TreeStep
from .tensor_parallel.divided_model import ranks_of
from .tensor_parallel.ranks import Ranks, in_step
from .threads import on_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Program = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Ids, cache_pos and slots, as :class:`~.step.DecoderStep` takes them, to logits."""

TreeProgram = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Ids, positions, written, paths and slots, as :class:`~.step.TreeStep` takes them, to logits."""

# A model in half precision of up to this many weights is also compared in float32, where a small
# error of architecture does not hide behind rounding. It takes this many times 4 bytes for a moment.
_MAX_WIDENED_WEIGHTS = 2**28


class Compiler(Protocol):
    """What made the programs of a decoder: a :class:`~.targets.target.Target`."""

    @property
    def name(self) -> str:
        """What the decoder has as ``target``."""
        ...


class StaticDecoder(FusedForwards):
    """
    A decoder over any Hugging Face causal LM whose layers keep plain keys and values.

    One program a width over one cache. As it is constructed it runs eagerly; a
    :class:`~.targets.target.Target` puts compiled programs in. What is saved, cut or linted is a
    :class:`~.compiled_decoder.CompiledDecoder`.
    """

    shape: DecoderShape
    """What :meth:`forward` takes and gives."""

    tree_widths: tuple[int, ...]
    """Columns of the forwards over trees; empty if there are none."""

    spans: tuple[int, ...]
    """How many leading positions a forward may attend to, ascending; the last is all of them."""

    cache: CacheBuffers
    """Keys and values by position."""

    programs: dict[int, Program]
    """What runs at each width."""

    tree_programs: dict[int, TreeProgram]
    """What runs at each tree width."""

    threads: int | None = None
    """
    How many threads a forward may use; None leaves it to torch. A model as small as a draft is
    fastest with 1: several threads take longer to meet than it takes to compute.
    """

    ranks: Ranks | None
    """This process among those that hold the model together; None if it is whole here."""

    cores: int = 1
    """How many cores of this process hold the model together (:mod:`.tensor_parallel.cores`)."""

    compiler: Compiler | None = None
    """What made the programs; None if they are eager."""

    compiled: bool = False
    """Whether a compiler ran to make this decoder, rather than saved programs being loaded."""

    packages: dict[str, Package]
    """The compiled programs by file name, as they are saved; empty if there are none."""

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
    ):
        """
        Build the decoder and compare it with *model*.

        Args:
            model: The stock model. It is not modified; its weights are shared, but for those that
                *dtype* or *weights* store otherwise.

            batch_size: Rows of every forward.

            max_length: Positions of a row. None: 2048, or as many as *model* knows if fewer.

            widths: Columns of the forwards, ascending, at most *max_length*. None: 1, 5 and 128, or
                *max_length* if that is less.

            scored_width: Forwards up to this width score every column. None: the largest width
                up to 32, else the smallest.

            tree_widths: Columns of the forwards over trees, ascending, at most *max_length*. The
                cache gets as many scratch slots as the largest of them has columns.

            spans: How many leading positions a forward may attend to, ascending, the last of them
                *max_length*. None: powers of two from 128.

            dtype: Of weights and cache: float32, bfloat16, float16 or float64, or its name.
                None: the model's own.

            weights: ``"int8"``, ``"int4"`` or ``"float8"`` stores linear layers in so many bits;
                *model* itself stays, and what the decoder is compared with is *model* with those
                layers. None: as they are.

        Raises:
            UnsupportedArchitecture: The logits differ from *model*'s, or it cannot be rewound.

            ValueError: An argument breaks its rule.
        """
        check_format(weights)
        if model.device.type != "cpu":
            raise ValueError(f"'model' must be on the CPU: got {model.device}")
        model = adopt(model, weight_dtype(dtype))
        if weights is not None:
            quantize(model, weights)
        # Says more about layers that keep something else than running them would.
        MaskPlan.of(model)
        geometry = Geometry.of(model)
        shape = decoder_shape(
            model,
            vocab_size=geometry.vocab_size,
            batch_size=batch_size,
            max_length=max_length,
            widths=widths,
            scored_width=scored_width,
        )
        self._assemble(model, geometry, shape, tree_widths, spans)
        self._compare_widened()
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
        A decoder over *model* itself, in evaluation mode, that has been compared before.

        Raises:
            ValueError: *shape* is none that *model* could have, *tree_widths* are no widths, or
                *spans* no spans.
        """
        geometry = Geometry.of(model)
        possible = decoder_shape(model, **{**attrs.asdict(shape), "vocab_size": geometry.vocab_size})
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
        A decoder that is going to get all of its programs, by :meth:`replace_programs`.

        Args:
            geometry: Of the model.

            shape: As *geometry* allows.

            tree_widths: Columns of the forwards over trees.

            spans: How many leading positions a forward may attend to.

            build: Gives the model, in evaluation mode, when something asks for it that programs
                cannot do: saving, an early exit, :attr:`weights`, ...

        Raises:
            ValueError: *tree_widths* are no widths, or *spans* no spans.
        """
        decoder = cls.__new__(cls)
        decoder._lay_out(geometry, shape, tree_widths, spans, build)
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
        fix_rotation(model, shape.max_length)
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
        check_tree_widths(tree_widths := as_tuple("tree_widths", tree_widths))
        if max(tree_widths, default=0) > shape.max_length:
            raise ValueError(
                f"'tree_widths' must be <= max_length = {shape.max_length}, as many scratch slots as "
                f"positions: got {tree_widths}"
            )
        self.spans = decoder_spans(spans, shape.max_length)
        self.shape = shape
        self.tree_widths = tree_widths
        self._build = build
        self.ranks = None
        scratch = max(tree_widths, default=0)
        self.cache = CacheBuffers.zeros(geometry, shape.batch_size, shape.max_length, scratch)
        self._slots = {span: self.cache.addresses(span) for span in self.spans}
        self.packages = {}

    @cached_property
    def step(self) -> DecoderStep:
        """What the programs for tokens in a row compute. A loaded decoder builds its model for it."""
        return DecoderStep(self._build(), self.shape.scored_width)

    @cached_property
    def tree_step(self) -> TreeStep:
        """What those for trees compute."""
        return TreeStep(self.step.model)

    @property
    def tp_degree(self) -> int:
        """How many processes, or cores of this one, hold the model together."""
        return self.cores if self.ranks is None else self.ranks.degree

    @property
    def target(self) -> str:
        """What the programs were compiled for; ``"eager"`` if they were not."""
        return "eager" if self.compiler is None else self.compiler.name

    @property
    def weights(self) -> Weights:
        """How the weights are stored: which layers in how many bits, what stays and why, bytes."""
        return Weights.of(self.step.model)

    def forward(self, ids: Tensor, cache_pos: Tensor, span: int | None = None) -> Tensor:
        """
        Write *ids* into the cache and score what may follow them.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of ``shape.widths``;
                -1 is padding, anywhere in a row.

            cache_pos: Position of the first column of each row, ``[batch]`` int64.

            span: One of :attr:`spans`: how many leading positions are attended to. None: the
                smallest that holds every token fed here.

        Returns:
            Logits ``[batch, width, vocab]`` float32, or ``[batch, 1, vocab]`` of the last
            column when *width* exceeds ``shape.scored_width``.

        Raises:
            ValueError: A wrong width, batch, id or position, or other ids than another rank's.
                Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.

            LostRank: Another process that holds a part of the model has ended.
        """
        check_inputs(ids, cache_pos, self.shape)
        slots = self._slots[smallest_span(self.spans, end_of(ids, cache_pos), span)]
        with on_threads(self.threads), in_step(self.ranks, ids, cache_pos, slots[-1:]):
            return self.programs[ids.shape[1]](ids, cache_pos, slots)

    def forward_tree(
        self, ids: Tensor, cache_pos: Tensor, parents: Tensor, span: int | None = None
    ) -> Tensor:
        """
        Score what may follow each column of a tree.

        Columns off the first branch keep their keys and values in scratch slots, which no other
        forward looks at.

        Args:
            ids: Tokens, ``[batch, width]`` int64, *width* one of :attr:`tree_widths`; -1 is
                padding, behind the tokens of its row.

            cache_pos: Position of the columns that have no parent, ``[batch]`` int64.

            parents: ``[batch, width]`` int64: the column before each, or -1.

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
        with on_threads(self.threads), in_step(self.ranks, ids, *layout, slots[-1:]):
            return self.tree_programs[ids.shape[1]](ids, *layout, slots)

    def steps(self) -> list[tuple[Step, int]]:
        """What each program runs, and at which width."""
        trees: list[tuple[Step, int]] = [(self.tree_step, width) for width in self.tree_widths]
        return [(self.step, width) for width in self.shape.widths] + trees + self.fused_steps()

    def fused_steps(self) -> list[tuple[Step, int]]:
        """Those of them that choose as well."""
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
    ) -> None:
        """
        Run these from now on.

        Args:
            programs: One for each width.

            tree_programs: One for each tree width.

            target: What made them.

            packages: By file name, what is saved.

            compiled: Whether a compiler ran.

            fused_programs: One for each of :meth:`fused_steps`; without them the host chooses.
        """
        self.programs = dict(programs)
        self.tree_programs = dict(tree_programs)
        self.fused_programs = dict(fused_programs or {})
        self.compiler = target
        self.packages = dict(packages)
        self.compiled = compiled

    def compare(self, whose: str) -> None:
        """
        Compare with the stock model, and trees with chains.

        Raises:
            UnsupportedArchitecture: The logits differ. The message calls this decoder *whose*.
        """
        compare(self, whose)

    def warm_up(self, spans: Sequence[int] | None = None) -> None:
        """
        Run every program once on padding.

        Args:
            spans: With each of these. None: with all of them.
        """
        start = torch.zeros(self.shape.batch_size, dtype=torch.int64)
        spans = self.spans if spans is None else spans
        for span in spans:
            for width in self.shape.widths:
                self.forward(torch.full((self.shape.batch_size, width), -1), start, span)
            for width in self.tree_widths:
                padding = torch.full((self.shape.batch_size, width), -1)
                self.forward_tree(padding, start, padding, span)
        self.warm_up_sampling(spans)

    def _eager(self, step: Step, *inputs: Tensor) -> Any:
        # Not inference_mode: its tensors refuse to be written in place by whoever gets the logits.
        with torch.no_grad():
            return step(*inputs, *self.cache.tensors)

    def _compare_widened(self) -> None:
        model = self.step.model
        if (
            model.dtype not in (torch.float16, torch.bfloat16)
            or model.num_parameters() > _MAX_WIDENED_WEIGHTS
        ):
            return
        shape = self.shape
        StaticDecoder(
            model,
            batch_size=shape.batch_size,
            max_length=shape.max_length,
            widths=shape.widths,
            scored_width=shape.scored_width,
            tree_widths=self.tree_widths,
            spans=self.spans,
            dtype=torch.float32,
        )
