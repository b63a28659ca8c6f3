"""Optional capabilities of draft lengths, drafters and verifications."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from ..history import History
from ..protocols import DecoderShape, Draft, SamplesTokens
from ..scores import Scores
from .decoders import AnyDecoder


@runtime_checkable
class PreparesLength(Protocol):
    """A draft length that examines the target when a generator is built."""

    def prepare(self, decoder: AnyDecoder, exact_width: bool) -> None:
        """Examine the target. Of what its rows hold, only the end may be lost."""


@runtime_checkable
class WeighsDelays(Protocol):
    """A draft length that weighs the rows that a longer forward delays without drafting for them."""

    def length_beside(self, rows: int, delayed: int) -> int:
        """
        The draft length of each of *rows* rows in the next step.

        Asked in place of a call with *rows* alone where other rows wait and the drafter gives no evidence.

        Args:
            rows: Those that may draft.

            delayed: The number of other rows that wait for the same forward, of other requests or in prefill;
                at least 1.
        """
        ...


@runtime_checkable
class WeighsEvidence(Protocol):
    """A draft length that decides by the evidence for the drafts, where the drafter gives some."""

    def weigh(self, evidence: Sequence[int]) -> Sequence[int]:
        """
        The draft length of each row in the next step, given each row's evidence; 0 is no draft.

        Rows that a longer forward delays without drafting for them, of other requests or in prefill, come
        last and have no evidence; their lengths are not used. A list or tuple, as long as *evidence*.
        """


@runtime_checkable
class PausesDrafts(WeighsEvidence, Protocol):
    """A draft length by evidence that does without it for some steps, in which drafters are not asked."""

    def wants_evidence(self) -> bool:
        """Whether to weigh the evidence for drafts in the next step; asked once a step."""


@runtime_checkable
class EndsDrafts(Protocol):
    """
    A draft length that ends drafts early, by their own tokens (of a drafter that :class:`DraftsWhile`).

    A draft token that has been sampled is always verified; what is decided is whether another follows it. So
    the text keeps its distribution under any verification.
    """

    def goes_on(self, ids: Tensor, scores: Scores) -> Tensor:
        """
        Whether another draft token may follow the newest one of each row.

        Args:
            ids: The newest draft tokens, ``[rows]`` int64; -1 in idle rows.

            scores: The processed logits that they were sampled from, ``[rows, 1, vocab]``.

        Returns:
            ``[rows]`` bool; ignored in idle rows.
        """


GoesOn: TypeAlias = Callable[[Tensor, Scores], Tensor]
"""As :meth:`EndsDrafts.goes_on`."""


@runtime_checkable
class DraftsWhile(Protocol):
    """A drafter that samples token by token, and can ask after each whether to go on."""

    def propose_while(
        self, history: History, budget: Tensor, sample: SamplesTokens, goes_on: GoesOn
    ) -> Draft:
        """
        Propose as :meth:`~..protocols.Drafter.propose`, but end a row's draft where *goes_on* is False.

        Args:
            history: As there.

            budget: As there.

            sample: As there.

            goes_on: Asked after each forward of the draft, about all rows.
        """
        ...


@runtime_checkable
class TakesTrees(Protocol):
    """A verification that accepts draft trees."""

    takes_trees: bool
    """Whether it accepts tokens on the branch of the target's own tokens only."""


@runtime_checkable
class ComparesScores(Protocol):
    """A verification that compares distributions, for which a drafter gives its logits."""

    compares_scores: bool
    """Whether it reads :attr:`~..protocols.Draft.scores`."""


@runtime_checkable
class ReadsTargetTokens(Protocol):
    """A verification that declares whether it reads the target's tokens in rows with draft tokens."""

    reads_target_tokens: bool
    """False if it reads the target's own tokens only in rows without draft tokens."""


@runtime_checkable
class GrowsTrees(Protocol):
    """A drafter that proposes trees, which the decoder and the parts must support."""

    tree_nodes: int | None
    """The largest number of draft tokens in a tree; None if it proposes none."""


@runtime_checkable
class ChecksTarget(Protocol):
    """A drafter that does not fit every target; checked when a generator is built."""

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` where it cannot draft for a target of that shape."""


@runtime_checkable
class CatchesUp(Protocol):
    """A drafter with a cache, whose prefill can be bounded, so that other rows need not wait for it."""

    def catch_up(self, history: History, rows: Tensor, most: int) -> Tensor:
        """
        Feed up to *most* columns of what it lacks, if it lacks more, in one forward.

        Args:
            history: The tokens so far, width 1.

            rows: The rows that are to be drafted for, ``[rows]`` bool; others are left as they are.

            most: A number of columns. What is at most that many is left to the next proposal.

        Returns:
            The number of tokens that each row still lacks, ``[rows]`` int64; 0 if it cannot be drafted for.
        """


@runtime_checkable
class GivesEvidence(Protocol):
    """
    A drafter that is a cheap function of the history, with evidence for its drafts, such as long matches.

    A mixture compares it, and a draft length may decide by it (:class:`WeighsEvidence`).
    """

    def evidence(self, history: History, budget: Tensor) -> Tensor:
        """The evidence for each row's draft, ``[batch]`` int64; 0 where there is no draft."""


@runtime_checkable
class ForeseesTokens(GivesEvidence, Protocol):
    """
    A drafter that tells the first tokens of its drafts with its evidence.

    It is asked for both in place of ``evidence``: a subclass that changes one of the three methods changes
    all.
    """

    def foresee(self, history: History, budget: Tensor) -> tuple[Tensor, Tensor]:
        """
        The evidence for each row's draft, and the draft's first token, from which a draft length learns where
        no draft is made.

        Returns:
            Twice ``[batch]`` int64; 0 and -1 where there is no draft.
        """


def takes_trees(verification: object) -> bool:
    """Whether *verification* accepts draft trees; False if undeclared."""
    return isinstance(verification, TakesTrees) and verification.takes_trees


def compares_scores(verification: object) -> bool:
    """Whether *verification* reads a draft's scores; False if undeclared."""
    return isinstance(verification, ComparesScores) and verification.compares_scores


def reads_target_tokens(verification: object) -> bool:
    """Whether *verification* reads the target's tokens in rows with draft tokens; True if undeclared."""
    return verification.reads_target_tokens if isinstance(verification, ReadsTargetTokens) else True


def tree_nodes(drafter: object) -> int | None:
    """The largest number of draft tokens in a tree of *drafter*; None if it proposes none."""
    return drafter.tree_nodes if isinstance(drafter, GrowsTrees) else None
