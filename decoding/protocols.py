"""
What the parts ask of each other.

Shapes are written ``[batch, width, vocab]``: *batch* rows, *width* columns of one forward,
one for a plain step and one more than the draft for a verification. Ids and positions are
int64 on the host; logits are float32.

A :class:`Decoder` scores. A :class:`Processor` reshapes the scores. A :class:`Sampler`
turns them into ids. A :class:`StopCondition` looks at what was chosen. A :class:`Drafter`
guesses ahead, and a :class:`Verification` says how much of the guess stands. What a part may
offer beyond its protocol is declared in :mod:`~decodekit.decoding.optional_protocols`.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import attrs
from torch import Tensor

from .history import History
from .scores import Scores

if TYPE_CHECKING:
    from .placement import Placement


def _as_tuple(widths: Iterable[int]) -> tuple[int, ...]:
    return tuple(widths)


@attrs.frozen
class DecoderShape:
    """What a decoder was compiled for."""

    batch_size: int
    """Rows of every forward."""

    max_length: int
    """Positions that a row's cache holds."""

    vocab_size: int
    """Logits per column."""

    widths: tuple[int, ...] = attrs.field(converter=_as_tuple)
    """Columns of the compiled forwards, ascending."""

    scored_width: int
    """One of them: forwards up to this width score every column, wider ones only the last."""

    def __attrs_post_init__(self) -> None:
        """Refuse widths that nothing could be fed in."""
        if not self.widths or self.widths[0] < 1 or list(self.widths) != sorted(set(self.widths)):
            raise ValueError(f"'widths' must be positive and ascending: got {self.widths}")
        if self.scored_width not in self.widths:
            raise ValueError(f"'scored_width' must be one of {self.widths}: got {self.scored_width}")


@runtime_checkable
class Decoder(Protocol):
    """
    A decoder of fixed shapes that owns its cache.

    The cache is addressed by position: slot *p* of a row belongs to the token at position *p*
    of that row. A forward writes its own slots before it reads, and the query at position *t*
    sees positions up to *t* of its own row. So nothing is ever rolled back: the next forward
    at a smaller *cache_pos* overwrites what has become wrong before anything reads it.
    """

    @property
    def shape(self) -> DecoderShape:
        """The shapes that :meth:`forward` takes and gives."""
        ...

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """
        Write *ids* into the cache and score what may follow them.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of ``shape.widths``.
                -1 is padding: it writes nothing and nothing sees it.

            cache_pos: Position of the first column of each row, ``[batch]`` int64. Under
                padding it may be negative.

        Returns:
            Logits ``[batch, width, vocab]`` float32, or ``[batch, 1, vocab]`` of the last
            column when *width* exceeds ``shape.scored_width``. What stands in padding columns
            means nothing. Valid until the next forward.

        Raises:
            ValueError: A wrong width, batch, id or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        ...


Processor: TypeAlias = Callable[[Tensor, History], Tensor]
"""
Logits ``[batch, width, vocab]`` and the tokens before each column, to logits of the same shape.

A processor is pure: it never writes into the logits that it is given, forbids with ``-inf``,
and reads nothing of the history beyond ``length``.
"""

Sampler: TypeAlias = Callable[[Tensor, History], Tensor]
"""
Processed logits ``[batch, width, vocab]`` to the chosen ids ``[batch, width]``.

Pure as well: a sampler that draws takes its numbers from :mod:`decodekit.decoding.sampling.noise`.
"""


@attrs.frozen
class Finish:
    """Why a row ended."""

    reason: str
    """In one word: ``"end_of_sequence"``, ``"max_new_tokens"``, ``"stop_string"``, ..."""

    matched: Any = None
    """What was met: a token, a tuple of them, a string; a pair of such for ``a & b``; None for a limit."""

    hide: bool = False
    """Whether the text leaves the match out. The ids keep it."""


@runtime_checkable
class StopCondition(Protocol):
    """
    Says where a row ends.

    Conditions compose: ``a | b`` ends at the first of the two, ``a & b`` where both hold.
    """

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """Every ending that this condition can give."""
        ...

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """
        Look at newly chosen tokens.

        Args:
            scores: The processed logits that each was chosen from; ``scores.logits`` builds them,
                ``[batch, width, vocab]``.

            history: The tokens, each column's own included: the newest of column *i* is
                ``ids[b, path, length[b, i] - 1]``.

        Returns:
            ``[batch, width]`` int64: 0 to go on, *i* to end with ``finishes[i - 1]``.
        """
        ...


class SamplesTokens(Protocol):
    """A chain of processors and a sampler, seen as one."""

    @property
    def draft_scores(self) -> bool:
        """Whether the verification looks at :attr:`Draft.scores`, so that a drafter is to give them."""
        ...

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores]:
        """Raw logits to ids ``[batch, width]``, -1 where no token is left, and the processed scores."""
        ...

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """Raw logits to the *n* likeliest choices ``[batch, width, n]``, the choice first, -1 for none."""
        ...


@attrs.frozen(eq=False)
class Draft:
    """What a drafter guesses."""

    ids: Tensor
    """``[batch, k]`` int64, left-aligned; -1 where a row has no more guesses."""

    scores: Tensor | None = None
    """The processed logits that they were drawn from, ``[batch, k, vocab]``; None for a point mass."""

    parents: Tensor | None = None
    """
    Of a tree: which guess each guess follows, ``[batch, k]`` int64, smaller than its own number;
    -1 for one that follows the row's last token. None for a chain, where each follows the one
    before it.
    """


@attrs.frozen(eq=False)
class SpeculationStep:
    """What one verification came to: what a :class:`DraftLength` learns from."""

    allowed: int
    """How many tokens ahead a drafter was allowed to guess; 0 if it was not asked."""

    drafted: tuple[int, ...]
    """How many tokens ahead it did, a number for each row that was not idle."""

    accepted: tuple[int, ...]
    """How many of them stood."""

    draft_seconds: float
    """That the drafter took."""

    target_seconds: float
    """That the target took to score: one forward, mostly."""

    other_seconds: float
    """That everything else took."""


@runtime_checkable
class DraftLength(Protocol):
    """
    Says how far ahead to guess, round by round.

    It may look at what past rounds came to, never at the guesses that it decides on: that would
    bias what a sampled text says under any verification but agreement.
    """

    @property
    def most(self) -> int:
        """It never says more than this: the decoder has to score one column more."""
        ...

    def __call__(self, rows: int) -> int:
        """How many tokens ahead each of *rows* rows may be guessed in the round that begins."""
        ...

    def learn(self, outcome: SpeculationStep) -> None:
        """Hear what a round came to."""
        ...


@runtime_checkable
class SamplesOnDevice(Protocol):
    """What a :class:`Decoder` offers besides, if a chain and a sampler are part of its forwards."""

    @property
    def sampling_widths(self) -> tuple[int, ...]:
        """Columns of the forwards that choose, ascending; empty for one that has none."""
        ...

    def can_sample(self, processors: Processor | None, sampler: Sampler, rows: int) -> bool:
        """
        Whether :meth:`forward_and_sample` chooses as these do, with the noise of each history's streams.

        Args:
            processors: A chain, one processor, or None.

            sampler: What chooses.

            rows: How many rows a run has; the decoder may have more.
        """
        ...

    def forward_and_sample(self, ids: Tensor, cache_pos: Tensor, history: History) -> tuple[Tensor, Scores]:
        """
        Write *ids* into the cache, as :meth:`Decoder.forward` does, and choose what follows them.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of :attr:`sampling_widths`.

            cache_pos: As in a forward.

            history: The tokens before the choice of each column: up to the column's own, ``[batch,
                width]`` or, where a forward of that width scores the last column alone, ``[batch, 1]``.

        Returns:
            Ids ``[batch, columns]`` int64 on the host, -1 where no token is left, and the raw logits.

        Raises:
            ValueError: As in a forward, or a history of another shape. Nothing has been written.

            TypeError: As in a forward.
        """
        ...

    def explain(self, processors: Processor | None, sampler: Sampler) -> "Placement":
        """Which part of a choice runs in the forward, which on the host, and why."""
        ...


@runtime_checkable
class ScoresTrees(Protocol):
    """
    What a :class:`Decoder` offers besides, if it can score a tree of guesses in one forward.

    A tree is a forward whose columns need not follow one another: each names the column that
    precedes it.
    """

    @property
    def tree_widths(self) -> tuple[int, ...]:
        """Columns of the compiled forwards over trees, ascending; empty for one that has none."""
        ...

    def forward_tree(self, ids: Tensor, cache_pos: Tensor, parents: Tensor) -> Tensor:
        """
        Score what may follow each column of a tree.

        A column sees the cache before *cache_pos*, the columns on its way there, and itself. The
        first branch (the first column, its first child, that one's first child, and so on) is
        written into the cache as :meth:`Decoder.forward` writes; of the other columns nothing
        remains. So a chain is the tree whose parents are -1, 0, 1, 2, ...

        Args:
            ids: Tokens, ``[batch, width]`` int64, *width* one of ``tree_widths``. -1 is padding,
                behind the tokens of its row.

            cache_pos: Position of the columns that have no parent, ``[batch]`` int64.

            parents: ``[batch, width]`` int64: the column before each, smaller than its own
                number, or -1 for none. Not looked at under padding.

        Returns:
            Logits ``[batch, width, vocab]`` float32. What stands in padding columns means
            nothing. Valid until the next forward.

        Raises:
            ValueError: A wrong width, batch, id, parent or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        ...


@runtime_checkable
class Drafter(Protocol):
    """Guesses what the target is going to choose."""

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """
        Guess the next tokens of each row.

        A wrong guess costs time, never correctness: the target's choice stands.

        Args:
            history: The tokens so far; width 1. Not to be written to.

            budget: How many tokens ahead each row may be guessed, ``[batch]`` int64; 0 for idle
                rows. For a chain that is its number of guesses.

            sample: The target's own chain and sampler. A drafter that draws uses it, so that
                both sides meet the same noise at the same position.

        Returns:
            Up to *budget* guesses of each row, ``[batch, k]`` of any k. The first that is no id
            of the vocabulary ends a row's draft; what exceeds its budget is not looked at.
        """
        ...


@runtime_checkable
class Verification(Protocol):
    """Decides how much of a draft stands, and what follows it."""

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        """
        The sampler with which a drafter is to draw in one round.

        Args:
            sampler: The target's.

            start: How many tokens each row has as the round begins, ``[batch]``.

        Raises:
            ValueError: This verification does not know how *sampler* chooses.
        """
        ...

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        """
        Compare a draft with the target.

        Args:
            draft: The guesses, ``[batch, k]``.

            choices: The target's own choice in each column, ``[batch, k + 1]``; column *i*
                has the first *i* guesses before it.

            scores: The processed logits behind them; ``scores.logits`` builds them,
                ``[batch, k + 1, vocab]``.

            window: The tokens before each column.

        Returns:
            How many guesses stand, ``[batch]``, and the token after them, ``[batch]``
            (-1 when no token was left there).
        """
        ...
