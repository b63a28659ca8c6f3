"""
What the parts ask of each other.

Shapes are written ``[batch, width, vocab]``: *batch* rows, *width* columns of one forward,
one for a plain step and one more than the draft for a verification. Ids and positions are
int64 on the host; logits are float32.

A :class:`Decoder` scores. A :class:`Processor` reshapes the scores. A :class:`Selection`
turns them into ids. A :class:`StopCondition` looks at what was chosen. A :class:`Drafter`
guesses ahead, and a :class:`Verification` says how much of the guess stands.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import attrs
from torch import Tensor

from .history import History
from .scores import Scores


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

Selection: TypeAlias = Callable[[Tensor, History], Tensor]
"""
Processed logits ``[batch, width, vocab]`` to the chosen ids ``[batch, width]``.

Pure as well: a selection that draws takes its numbers from :mod:`decodekit.decoding.noise`.
One with an attribute ``seed`` has that seed folded into the rows' random streams.
"""


@attrs.frozen
class Ending:
    """Why a row ended."""

    reason: str
    """In one word: ``"end_of_sequence"``, ``"max_new_tokens"``, ``"stop_string"``, ..."""

    matched: Any = None
    """What was met: a token, a string; a pair of such for ``a & b``; None for a limit."""

    hide: bool = False
    """Whether the text leaves the match out. The ids keep it."""


class StopCondition(Protocol):
    """
    Says where a row ends.

    Conditions compose: ``a | b`` ends at the first of the two, ``a & b`` where both hold.
    """

    @property
    def endings(self) -> tuple[Ending, ...]:
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
            ``[batch, width]`` int64: 0 to go on, *i* to end with ``endings[i - 1]``.
        """
        ...


class Choice(Protocol):
    """A chain of processors and a selection, seen as one."""

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores]:
        """Raw logits to ids ``[batch, width]``, -1 where no token is left, and the processed scores."""
        ...


@attrs.frozen(eq=False)
class Draft:
    """What a drafter guesses."""

    ids: Tensor
    """``[batch, k]`` int64, left-aligned; -1 where a row has no more guesses."""

    scores: Tensor | None = None
    """The processed logits that they were drawn from, ``[batch, k, vocab]``; None for a point mass."""


class Drafter(Protocol):
    """Guesses what the target is going to choose."""

    def propose(self, history: History, budget: Tensor, choose: Choice) -> Draft:
        """
        Guess the next tokens of each row.

        A wrong guess costs time, never correctness: the target's choice stands.

        Args:
            history: The tokens so far; width 1. Not to be written to.

            budget: How many guesses each row may have, ``[batch]`` int64; 0 for idle rows.

            choose: The target's own chain and selection. A drafter that draws uses it, so that
                both sides meet the same noise at the same position.

        Returns:
            Up to *budget* guesses of each row, ``[batch, k]`` of any k. The first that is no id
            of the vocabulary ends a row's draft; what exceeds its budget is not looked at.
        """
        ...


class Verification(Protocol):
    """Decides how much of a draft stands, and what follows it."""

    def drafting(self, selection: Selection) -> Selection:
        """The selection with which a drafter is to draw, given the target's."""
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
