"""
What a part may offer beyond its protocol.

Each class here is one capability. A part offers it by having its names, whatever it inherits
from. What reads it looks once, when it is built: a generator, a chain, the slots of a decoder.

Short cuts, which say in another way what a call says, are taken of classes that are declared by
:func:`has_short_cuts`, and not of their subclasses: one of those may change what a call says.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

from torch import Tensor

from .history import History
from .protocols import Decoder, DecoderShape, Processor, Sampler, ScoresTrees, StopCondition

Kind = TypeVar("Kind", bound=type)

_with_short_cuts: set[type] = set()


def has_short_cuts(kind: Kind) -> Kind:
    """Declare, as the outermost decorator, that short cuts of this class say what its calls say."""
    _with_short_cuts.add(kind)
    return kind


def offers_short_cuts(part: object) -> bool:
    """Whether the very class of *part* has declared short cuts."""
    return type(part) in _with_short_cuts


# Processors


@runtime_checkable
class Composed(Protocol):
    """A processor that applies others one after another. What runs or names them takes it apart."""

    processors: tuple[Processor, ...]
    """In the order in which they are applied."""


def stages_of(processors: Processor | None) -> tuple[Processor, ...]:
    """The processors of a chain one by one; one processor alone; none of None."""
    if isinstance(processors, Composed):
        return processors.processors
    return () if processors is None else (processors,)


@runtime_checkable
class KeepsArgmax(Protocol):
    """A processor that leaves the largest logit the largest. A greedy choice does without it at the end."""

    keeps_argmax: bool
    """Whether it does. Rounding may tie the largest with another."""


@runtime_checkable
class ShiftInvariant(Protocol):
    """A processor whose distribution a constant added to a row of logits does not change."""

    shift_invariant: bool
    """Whether it is."""


@runtime_checkable
class Local(Protocol):
    """A processor that looks at no ids and ignores ``-inf``. It runs on the survivors of an earlier one."""

    local: bool
    """Whether it is. One that declares this, True or False, keeps no reference to its logits."""


@runtime_checkable
class DeviceSafe(Protocol):
    """A processor made of operations that neuronx-cc takes. It may become part of a decoder's forward."""

    device_safe: bool
    """Whether it is."""


@runtime_checkable
class WritesInto(Protocol):
    """A processor with a short cut that allocates nothing. The host's choice runs it in its workspace."""

    def into(self, logits: Tensor, history: History, out: Tensor) -> Tensor:
        """What a call gives, written into *out*, which may be *logits* itself."""


# Samplers


@runtime_checkable
class Seeded(Protocol):
    """A sampler whose seed a generator folds into the rows' random streams."""

    seed: int
    """Any integer."""


@runtime_checkable
class TakesArgmax(Protocol):
    """A sampler that chooses the largest logit. Last stages that keep it are left out."""

    takes_argmax: bool
    """Whether it does."""


@runtime_checkable
class DrawsSoftmax(Protocol):
    """A sampler that draws from the softmax of the logits, as comparing distributions requires."""

    draws_softmax: bool
    """Whether it does."""


@runtime_checkable
class RanksTokens(Protocol):
    """A sampler that ranks tokens. The children of a draft tree are taken from that."""

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """The *n* likeliest choices ``[batch, width, n]``, first what a call chooses."""


@runtime_checkable
class MeasuresGap(Protocol):
    """A sampler that measures how close its choice is, for :attr:`~.generator.Generator.record_gap`."""

    def gap(self, logits: Tensor, history: History) -> Tensor:
        """How far each column's choice is ahead, ``[batch, width]`` float64."""


@runtime_checkable
class DeclaresState(Protocol):
    """A sampler that says whether it depends on past logits. Such a one is refused under speculation."""

    is_stateful: ClassVar[bool]
    """Whether it does."""


@runtime_checkable
class BeginsRuns(Protocol):
    """A sampler that is a configuration. A generator begins one for each run."""

    def begin(self, batch: int) -> Sampler:
        """The sampler of one run over *batch* rows."""


@runtime_checkable
class StatefulSampler(DeclaresState, BeginsRuns, Protocol):
    """
    A sampler that depends on past logits, and so is no function of the history.

    It is a configuration; each run has a sampler of its own, which :meth:`begin` makes and
    which holds its state. It cannot run under speculation: what a rejected guess taught it
    would have to be unlearnt.
    """


def draws_softmax(sampler: object) -> bool:
    """Whether *sampler* is known to draw from the softmax of the logits."""
    return isinstance(sampler, DrawsSoftmax) and sampler.draws_softmax


def is_stateful(sampler: object) -> bool:
    """Whether *sampler* depends on past logits."""
    return isinstance(sampler, DeclaresState) and sampler.is_stateful


# Stop conditions

TokenCode: TypeAlias = Callable[[int, int, int, int], int]
"""The code of one new token: ``(token, length, prompt, row)``, the token itself among the *length*."""


@runtime_checkable
class TellsByToken(Protocol):
    """A condition with a short cut for one token a row, which spares arrays of one number."""

    def by_token(self) -> TokenCode | None:
        """What it says of one new token by these numbers alone; None if it looks at more."""


@runtime_checkable
class BeginsStop(Protocol):
    """A condition that keeps something while a run lasts. A generator begins one for each run."""

    def begin(self) -> StopCondition:
        """The condition for one run."""


@runtime_checkable
class CombinesConditions(Protocol):
    """A condition that is composed of others, which a generator checks one by one."""

    conditions: Sequence[StopCondition]
    """Those."""


@runtime_checkable
class ReadsText(Protocol):
    """A condition that reads the ids as text. A generator with a tokenizer has to read them alike."""

    skip_special_tokens: bool
    """Whether special tokens are left out."""


# Streamers


@runtime_checkable
class HearsPrompts(Protocol):
    """A streamer that is told of the prompts before anything is decoded."""

    def begin(self, prompts: list[list[int]]) -> None:
        """Take every row's ids."""


@runtime_checkable
class HearsFailure(Protocol):
    """A streamer that is told of an error; one without this is ended."""

    def fail(self, error: BaseException) -> None:
        """Take what the generation raised, in place of ``end``."""


# Speculation


@runtime_checkable
class PreparesLength(Protocol):
    """A draft length that is shown the target when a generator is built."""

    def prepare(self, decoder: Decoder, exact_width: bool) -> None:
        """Look at the target, whose cache stays as it is."""


@runtime_checkable
class TakesTrees(Protocol):
    """A verification that takes trees of guesses."""

    takes_trees: bool
    """Whether it keeps nothing of a tree but the branch that the target's own choices take."""


@runtime_checkable
class ComparesScores(Protocol):
    """A verification for which a drafter gives the logits that it drew from."""

    compares_scores: bool
    """Whether it looks at :attr:`~.protocols.Draft.scores`."""


@runtime_checkable
class ReadsTargetTokens(Protocol):
    """A verification that says whether the target has to choose in rows with guesses."""

    reads_target_tokens: bool
    """False if it looks at the target's own choices in rows without guesses alone."""


@runtime_checkable
class GrowsTrees(Protocol):
    """A drafter that guesses trees, which the decoder and the parts have to take."""

    tree_nodes: int | None
    """The most guesses that a tree of its has; None if it grows none."""


@runtime_checkable
class ChecksTarget(Protocol):
    """A drafter that does not fit every target. A generator asks when it is built."""

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` where it cannot draft for a target of that shape."""


@runtime_checkable
class GivesEvidence(Protocol):
    """A drafter whose guess is a function of the history and costs next to nothing, as a mixture reads it."""

    def evidence(self, history: History, budget: Tensor) -> Tensor:
        """How much speaks for its guess in each row, ``[batch]`` int64; 0 where it has none."""


def takes_trees(verification: object) -> bool:
    """Whether *verification* takes trees of guesses; False where it does not say."""
    return isinstance(verification, TakesTrees) and verification.takes_trees


def compares_scores(verification: object) -> bool:
    """Whether *verification* looks at a draft's scores; False where it does not say."""
    return isinstance(verification, ComparesScores) and verification.compares_scores


def reads_target_tokens(verification: object) -> bool:
    """Whether *verification* looks at choices in rows with guesses; True where it does not say."""
    return verification.reads_target_tokens if isinstance(verification, ReadsTargetTokens) else True


def tree_nodes(drafter: object) -> int | None:
    """How many guesses a tree of *drafter* has at most; None if it grows none."""
    return drafter.tree_nodes if isinstance(drafter, GrowsTrees) else None


# Decoders


@runtime_checkable
class HasSpans(Protocol):
    """A decoder that attends to the leading positions alone, and takes ``span=`` in a forward."""

    spans: Sequence[int]
    """How many positions, ascending; the last is all of them."""


@runtime_checkable
class AdvisesWidth(Protocol):
    """A decoder that others compiled, which knows what its maker calls a width."""

    def advise_width(self, columns: int) -> str:
        """How to get it to score so many columns, a sentence for an error."""


def tree_widths(decoder: object) -> tuple[int, ...]:
    """Columns of the forwards over trees of *decoder*; none where it scores none."""
    return tuple(decoder.tree_widths) if isinstance(decoder, ScoresTrees) else ()
