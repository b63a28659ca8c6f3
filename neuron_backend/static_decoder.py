"""A Hugging Face causal LM as a decoder of fixed shapes."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from ..decoding.checks import check_inputs, check_tree_inputs, check_tree_widths
from ..decoding.protocols import DecoderShape, Processor, Selection
from ..decoding.whole_numbers import as_tuple
from .architectures.rotation import fix_rotation
from .artifacts.hub import push_decoder
from .artifacts.packages import Package
from .artifacts.saving import save_decoder
from .cache import CacheBuffers
from .early_exit import first_layers
from .fused.choice_probe import check_choices
from .fused.fused_forwards import FusedForwards, FusedProgram
from .geometry import Geometry
from .graphs.rules import Finding
from .graphs.step_lowering import lint_decoder
from .masks import MaskPlan
from .parallel.ranks import Ranks, in_step
from .parallel.tensor_parallel import ranks_of
from .probe import TOLERANCE, Probe
from .quantization.quantized import Weights, check_format, quantize
from .shapes import decoder_shape
from .spans import decoder_spans, end_of, smallest_span
from .step import DecoderStep, Step, TreeStep
from .targets.eager_target import EagerTarget
from .targets.target import Target
from .threads import on_threads
from .tree_layout import lay_out
from .tree_probe import check_trees
from .weights import adopt, align, weight_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Program = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Ids, cache_pos and slots, as :class:`~.step.DecoderStep` takes them, to logits."""

TreeProgram = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Ids, positions, written, paths and slots, as :class:`~.step.TreeStep` takes them, to logits."""

# A model in half precision of up to this many weights is also compared in float32, where a small
# error of architecture does not hide behind rounding. It takes this many times 4 bytes for a moment.
_MAX_WIDENED_WEIGHTS = 2**28


class StaticDecoder(FusedForwards):
    """
    A decoder over any Hugging Face causal LM whose layers keep plain keys and values.

    One program a width over one cache. As it is constructed it runs eagerly;
    :func:`~decodekit.neuron_backend.compile_decoder` puts compiled programs in.
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
    """How many cores of this process hold the model together (:mod:`.parallel.cores`)."""

    compiler: Target = EagerTarget()
    """What made the programs."""

    compiled: bool = False
    """Whether a compiler ran to make this decoder, rather than saved programs being loaded."""

    packages: dict[str, Package]
    """The compiled programs by file name, as :meth:`save` stores them; empty if there are none."""

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
        align(model)
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
    ) -> "StaticDecoder":
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
    ) -> "StaticDecoder":
        """
        A decoder that is going to get all of its programs, by :meth:`replace_programs`.

        Args:
            geometry: Of the model.

            shape: As *geometry* allows.

            tree_widths: Columns of the forwards over trees.

            spans: How many leading positions a forward may attend to.

            build: Gives the model, in evaluation mode, when something asks for it that programs
                cannot do: :meth:`save`, :meth:`early_exit`, :attr:`weights`, ...

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
        return self.compiler.name

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
        layout = lay_out(ids, cache_pos, parents)
        slots = self._slots[smallest_span(self.spans, int(layout[0].max()) + 1, span)]
        with on_threads(self.threads), in_step(self.ranks, ids, *layout, slots[-1:]):
            return self.tree_programs[ids.shape[1]](ids, *layout, slots)

    def save(self, folder: str | PathLike[str], tokenizer: "PreTrainedTokenizerBase | None" = None) -> None:
        """
        Write everything that :func:`~decodekit.neuron_backend.load_decoder` needs into *folder*.

        Args:
            folder: New, empty, or a decoder saved before, which is replaced as a whole.

            tokenizer: Saved beside the model.

        Raises:
            ValueError: *folder* holds something else.
        """
        save_decoder(self, folder, tokenizer)

    def push_to_hub(
        self,
        repo_id: str,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        *,
        private: bool | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        commit_message: str | None = None,
    ) -> str:
        """
        Save into a repository of the Hugging Face hub, for ``load_decoder(repo_id)``.

        What is there of the same names is replaced, in one commit. A card is written if the
        repository has none.

        Args:
            repo_id: ``"user/name"``. It is made if it is not there.

            tokenizer: Saved beside the model.

            private: Whether a repository that is made is. None: as the account's default is.

            revision: The branch, made if it is not there. None: the main one.

            token: None: the one that is logged in.

            commit_message: None: one that names the version of decodekit.

        Returns:
            The commit's address.

        Raises:
            ValueError: *repo_id* is none.
        """
        return push_decoder(
            self,
            repo_id,
            tokenizer,
            private=private,
            revision=revision,
            token=token,
            commit_message=commit_message,
        )

    def early_exit(
        self,
        num_layers: int,
        *,
        widths: Sequence[int] | None = None,
        scored_width: int | None = None,
        processors: Processor | None = None,
        selection: Selection | None = None,
        target: str | Target | None = None,
    ) -> "StaticDecoder":
        """
        The first *num_layers* layers, the final norm and the head, as a decoder that can draft.

        It has these weights, shared, a cache of its own, and the rows and positions of this
        decoder: ``DraftModel(target.early_exit(4))``. How often such a draft is right is up to
        the model. One that was not trained to be left early rarely says anything useful before
        its last layers; all layers together are always right.

        Elhoushi et al., 2024, `LayerSkip: Enabling Early Exit Inference and Self-Speculative
        Decoding <https://arxiv.org/abs/2404.16710>`_. There the target goes on from
        the draft's hidden states and cache; here it scores the draft with all of its layers, as
        any other.

        Args:
            num_layers: How many to keep, 1 up to all of them.

            widths: Columns of the forwards, ascending. None: what a draft needs: 1, 2 (a token
                that it missed and the newest), and this decoder's widest for prompts.

            scored_width: None: the smallest of *widths*, all that a draft needs.

            processors: The target's, for a draft that chooses in its own forwards: as for
                :func:`~decodekit.neuron_backend.compile_decoder`.

            selection: The target's, likewise.

            target: As for :func:`~decodekit.neuron_backend.compile_decoder`. None: this
                decoder's.

        Raises:
            UnsupportedArchitecture: The model cannot be cut.

            ValueError: An argument breaks its rule.
        """
        # Compiling is built on this module.
        from .compilation import compile_decoder

        if widths is None:
            widest = self.shape.widths[-1]
            widths = sorted({min(width, widest) for width in (1, 2, widest)})
        widths = as_tuple("widths", widths)
        return compile_decoder(
            first_layers(self.step.model, num_layers),
            batch_size=self.shape.batch_size,
            max_length=self.shape.max_length,
            widths=widths,
            scored_width=min(widths, default=1) if scored_width is None else scored_width,
            spans=self.spans,
            processors=processors,
            selection=selection,
            target=self.compiler if target is None else target,
            tp_degree=self.tp_degree,
        )

    def lint(self) -> dict[str, list[Finding]]:
        """
        What Neuron's compiler is known to refuse of this decoder, whatever it was compiled for.

        It takes neither a device nor Neuron's packages, and some seconds a program. Nothing found
        does not mean that it compiles: see :mod:`.graphs.lint`.

        Returns:
            Findings by the name of the program, such as ``"width_5_span_128"``: each width and
            span that :class:`~.targets.native_target.NativeTarget` would compile.
        """
        return lint_decoder(self)

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
        target: Target,
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

            packages: By file name, what :meth:`save` stores.

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
        probe = self.probe()
        probe.check(self.forward, whose)
        if len(self.spans) > 1:
            probe.check(partial(self.forward, span=self.shape.max_length), whose)
        tolerance = TOLERANCE[self.step.model.dtype]
        check_trees(self, self.step.plan.span, tolerance, whose, probe.architecture)
        check_choices(self, tolerance, whose, probe.architecture)

    def probe(self) -> Probe:
        """The comparison with the stock model, at this decoder's shape."""
        return Probe.of(self.step.model, self.shape, self.step.plan.span)

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
        self.warm_up_choosing(spans)

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
