"""
The protocols between the parts of a generation.

Shapes are written ``[batch, width, vocab]``: *batch* rows, *width* columns of one forward,
one for a plain step and one more than the draft tokens for a verification. Ids and positions are
int64 on the host; logits are float32.

A :class:`Decoder` computes logits. A :class:`Processor` transforms them. A :class:`Sampler` samples
ids from them. A :class:`StopCondition` ends rows. A :class:`Drafter` proposes draft tokens, and a
:class:`Verification` decides how many are accepted. Optional capabilities of a part are declared in
:mod:`~decodekit.decoding.optional_protocols`.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import attrs
from torch import Tensor

from .history import History
from .scores import Scores
from .validation import as_tuple, is_whole

if TYPE_CHECKING:
    from .sampling_placement import Placement


def _as_widths(widths: Iterable[int]) -> tuple[int, ...]:
    return as_tuple("widths", widths)


@attrs.frozen
class DecoderShape:
    """The shapes that a decoder was compiled for."""

    batch_size: int
    """Rows of every forward."""

    max_length: int
    """Positions of a row's KV cache."""

    vocab_size: int
    """Logits per column."""

    widths: tuple[int, ...] = attrs.field(converter=_as_widths)
    """Columns of the compiled forwards (token buckets), ascending."""

    scored_width: int
    """One of the widths: forwards up to it score every column, wider ones only the last."""

    def __attrs_post_init__(self) -> None:
        """Refuse invalid sizes."""
        sizes = {
            "batch_size": self.batch_size,
            "max_length": self.max_length,
            "vocab_size": self.vocab_size,
        }
        for name, size in sizes.items():
            if not is_whole(size) or size < 1:
                raise ValueError(f"'{name}' must be a whole number >= 1: got {size!r}")
        if not all(map(is_whole, self.widths)):
            raise TypeError(f"'widths' must be whole numbers: got {self.widths}")
        if not self.widths or self.widths[0] < 1 or list(self.widths) != sorted(set(self.widths)):
            raise ValueError(f"'widths' must be positive and ascending: got {self.widths}")
        if self.scored_width not in self.widths:
            raise ValueError(f"'scored_width' must be one of {self.widths}: got {self.scored_width}")


@runtime_checkable
class Decoder(Protocol):
    """
    A decoder of fixed shapes that owns its KV cache.

    The cache is addressed by position: slot *p* of a row belongs to the token at position *p*
    of that row. A forward writes its own slots before it reads, and the query at position *t*
    attends to positions up to *t* of its own row. So nothing is ever rolled back: the next forward
    at a smaller *cache_pos* overwrites stale slots before anything reads them.
    """

    @property
    def shape(self) -> DecoderShape:
        """The shapes of :meth:`forward`."""
        ...

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """
        Write *ids* into the cache and compute the logits of their successors.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of ``shape.widths``.
                -1 is padding: it writes nothing and is not attended to.

            cache_pos: Position of the first column of each row, ``[batch]`` int64. Under
                padding it may be negative.

        Returns:
            Logits ``[batch, width, vocab]`` float32, or ``[batch, 1, vocab]`` of the last
            column when *width* exceeds ``shape.scored_width``. Padding columns are undefined. Valid
            until the next forward.

        Raises:
            ValueError: A wrong width, batch, id or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        ...


Processor: TypeAlias = Callable[[Tensor, History], Tensor]
"""
Logits ``[batch, width, vocab]`` and the tokens before each column, to logits of the same shape.

A processor is pure: it never writes into its input, forbids tokens with ``-inf``, and reads nothing
of the history beyond ``length``.
"""

Sampler: TypeAlias = Callable[[Tensor, History], Tensor]
"""
Processed logits ``[batch, width, vocab]`` to sampled ids ``[batch, width]``.

Pure as well: random samplers take their noise from :mod:`decodekit.decoding.sampling.noise`.
"""


@attrs.frozen
class Finish:
    """Why a row ended."""

    reason: str
    """An identifier: ``"end_of_sequence"``, ``"max_new_tokens"``, ``"stop_string"``, ..."""

    matched: Any = None
    """The match: a token, a tuple of tokens or a string; a pair of these for ``a & b``; None for a limit."""

    hide: bool = False
    """Whether the match is left out of the text. The ids keep it."""


NO_TOKEN_LEFT = "no_token_left"
"""The reason of a row that a processor left no token; matched is the processor."""

NUMERIC_OVERFLOW = "numeric_overflow"
"""The reason of a row whose raw logits are not numbers."""


@runtime_checkable
class StopCondition(Protocol):
    """
    Decides where a row ends.

    Conditions compose: ``a | b`` ends at the first of the two, ``a & b`` where both hold.
    """

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """All finishes that this condition can give."""
        ...

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """
        Check newly sampled tokens.

        Args:
            scores: The processed logits that each was sampled from; ``scores.logits`` builds them,
                ``[batch, width, vocab]``.

            history: The tokens, each column's own included: the newest of column *i* is
                ``ids[b, path, length[b, i] - 1]``.

        Returns:
            ``[batch, width]`` int64: 0 to go on, *i* to end with ``finishes[i - 1]``.
        """
        ...


class SamplesTokens(Protocol):
    """A chain of processors and a sampler as one callable."""

    @property
    def draft_scores(self) -> bool:
        """Whether a drafter must give :attr:`Draft.scores`, because the verification reads them."""
        ...

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores]:
        """Raw logits to ids ``[batch, width]``, -1 where no token is possible, and the processed scores."""
        ...

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """Raw logits to the *n* top choices ``[batch, width, n]``, the sampled token first, -1 for none."""
        ...


@attrs.frozen(eq=False)
class Draft:
    """The draft tokens that a drafter proposes."""

    ids: Tensor
    """``[batch, k]`` int64, left-aligned; -1 where a row has no more draft tokens."""

    scores: Tensor | None = None
    """The processed logits that they were sampled from, ``[batch, k, vocab]``; None for a point mass."""

    parents: Tensor | None = None
    """
    Of a tree: the index of the draft token that each one follows, ``[batch, k]`` int64, smaller than
    its own; -1 if it follows the row's last token. None for a chain, where each follows the one
    before it.
    """


@attrs.frozen(eq=False)
class SpeculationStep:
    """The outcome of one verification, from which a :class:`DraftLength` learns."""

    allowed: int
    """The longest draft that a row was allowed; 0 if the drafter was not called."""

    drafted: tuple[int, ...]
    """
    The draft length of each row that may draft. With evidence, 0 follows for each other row that the forward
    delayed: of other requests, or in prefill.
    """

    accepted: tuple[int, ...]
    """The accepted draft tokens of each of these rows."""

    draft_seconds: float
    """Time in the drafter."""

    target_seconds: float
    """Time of scoring with the target, usually one forward."""

    other_seconds: float
    """Time of everything else."""

    evidence: tuple[int, ...] | None = None
    """The drafter's evidence for each of these rows' drafts; None where it was not asked for any."""

    longest: int | None = None
    """
    The longest draft that the target scored in this step, those of other policies' rows included; None for
    the longest of :attr:`drafted`.
    """

    foreseen: tuple[bool, ...] | None = None
    """
    Whether each of these rows' next token is the one that a draft would have begun with; None if the drafter
    does not tell it.
    """

    total: int | None = None
    """
    All draft tokens that the target scored in this step, those of other policies' rows included; None for the
    sum of :attr:`drafted`.
    """

    delayed: int = 0
    """
    Without evidence: the number of other rows that the forward delayed, of other requests or in prefill.
    """

    catching_up: tuple[bool, ...] | None = None
    """
    Whether the drafter fed each of these rows' prompt, or tokens that it missed, and so may have drafted
    nothing; :attr:`draft_seconds` are then not those of drafts. None if it caught up with no row.
    """

    @property
    def only_catches_up(self) -> bool:
        """Whether the drafter caught up with a row, and drafted nothing."""
        return any(self.catching_up or ()) and not any(self.drafted)


@runtime_checkable
class DraftLength(Protocol):
    """
    Chooses the draft length of each speculation step.

    It may depend on past steps and on the tokens so far, never on sampled draft tokens that it decides on:
    that would bias sampled text under every verification but exact match.
    """

    @property
    def most(self) -> int:
        """The largest draft length; the decoder must score one column more."""
        ...

    def __call__(self, rows: int) -> int:
        """
        The draft length of each of *rows* rows in the next step.

        Requests that share a decoder and a policy are one call: *rows* are theirs together.
        """
        ...

    def learn(self, outcome: SpeculationStep) -> None:
        """Learn from the outcome of a step."""
        ...


@runtime_checkable
class SamplesOnDevice(Protocol):
    """An optional capability of a :class:`Decoder`: a chain and a sampler compiled into its forwards."""

    @property
    def sampling_widths(self) -> tuple[int, ...]:
        """Columns of the sampling forwards, ascending; empty if there are none."""
        ...

    def can_sample(self, processors: Processor | None, sampler: Sampler, rows: int) -> bool:
        """
        Whether :meth:`forward_and_sample` samples as these do, with the noise of the history's streams.

        Args:
            processors: A chain, one processor, or None.

            sampler: The sampler.

            rows: Rows of the run; the decoder may have more.
        """
        ...

    def forward_and_sample(self, ids: Tensor, cache_pos: Tensor, history: History) -> tuple[Tensor, Scores]:
        """
        Write *ids* into the cache, as :meth:`Decoder.forward` does, and sample their successors.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of :attr:`sampling_widths`.

            cache_pos: As in a forward.

            history: The tokens before each column's sample, the column's own included: ``[batch,
                width]`` or, where a forward of that width scores the last column alone, ``[batch, 1]``.

        Returns:
            Ids ``[batch, columns]`` int64 on the host, -1 where no token is possible, and the raw logits.

        Raises:
            ValueError: As in a forward, or a history of another shape. Nothing has been written.

            TypeError: As in a forward.
        """
        ...

    def explain(self, processors: Processor | None, sampler: Sampler) -> "Placement":
        """Which stages run in the forward, which on the host, and why."""
        ...


@runtime_checkable
class ScoresTrees(Protocol):
    """
    An optional capability of a :class:`Decoder`: scoring a tree of draft tokens in one forward.

    In a tree forward, columns need not follow one another: each names the column that precedes it.
    """

    @property
    def tree_widths(self) -> tuple[int, ...]:
        """Columns of the compiled tree forwards, ascending; empty if there are none."""
        ...

    def forward_tree(self, ids: Tensor, cache_pos: Tensor, parents: Tensor) -> Tensor:
        """
        Compute the logits after each column of a tree.

        A column attends to the cache before *cache_pos*, its ancestors, and itself. The first branch
        (the first column, its first child, that one's first child, and so on) is written into the
        cache as by :meth:`Decoder.forward`; the other columns leave nothing. So a chain is the tree
        whose parents are -1, 0, 1, 2, ...

        Args:
            ids: Tokens, ``[batch, width]`` int64, *width* one of ``tree_widths``. -1 is padding,
                after the tokens of its row.

            cache_pos: Position of the columns that have no parent, ``[batch]`` int64.

            parents: ``[batch, width]`` int64: the column before each, smaller than its own
                number, or -1 for none. Ignored under padding.

        Returns:
            Logits ``[batch, width, vocab]`` float32. Padding columns are undefined. Valid until the
            next forward.

        Raises:
            ValueError: A wrong width, batch, id, parent or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        ...


@runtime_checkable
class Drafter(Protocol):
    """Proposes tokens that the target may sample."""

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """
        Propose the next tokens of each row.

        A wrong draft token costs time, never correctness: the target decides.

        Args:
            history: The tokens so far; width 1, read-only.

            budget: The allowed draft length of each row, ``[batch]`` int64; 0 for idle rows. Of a
                tree, the depth.

            sample: The target's own chain and sampler. A drafter that samples uses it, so that
                both sides use the same noise at the same position.

        Returns:
            Up to *budget* draft tokens of each row, ``[batch, k]`` of any k. The first that is no id
            of the vocabulary ends a row's draft; tokens beyond the budget are ignored.
        """
        ...


@runtime_checkable
class Verification(Protocol):
    """Decides how many draft tokens are accepted, and the token after them."""

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        """
        The sampler that a drafter must use in one step.

        Args:
            sampler: The target's.

            start: Tokens of each row at the start of the step, ``[batch]``.

        Raises:
            ValueError: This verification does not support *sampler*.
        """
        ...

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        """
        Compare a draft with the target.

        Args:
            draft: The draft tokens, ``[batch, k]``.

            choices: The target's own token in each column, ``[batch, k + 1]``; column *i*
                has the first *i* draft tokens before it.

            scores: The processed logits they were sampled from; ``scores.logits`` builds them,
                ``[batch, k + 1, vocab]``.

            window: The tokens before each column.

        Returns:
            The number of accepted draft tokens, ``[batch]``, and the token after them, ``[batch]``
            (-1 where no token was possible).
        """
        ...
