"""
Optional capabilities of the parts.

Each class here is one capability. A part offers it by having its members, whatever it inherits
from. It is looked up once, when a generator, a chain or the slots of a decoder are built.

The short cut of a stop condition computes the result of a call in a faster way. It is used for classes
declared by :func:`has_short_cuts` and not for their subclasses, which may change the result of a call.
Those of processors and samplers are in :mod:`~decodekit.decoding.sampling.short_cuts`.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

from torch import Tensor

from .history import History
from .protocols import (
    Decoder,
    DecoderShape,
    Draft,
    Processor,
    Sampler,
    SamplesTokens,
    ScoresTrees,
    StopCondition,
)
from .scores import Scores
from .token_feeder import TokenFeeder

Kind = TypeVar("Kind", bound=type)

_with_short_cuts: set[type] = set()


def has_short_cuts(kind: Kind) -> Kind:
    """Declare, as the outermost decorator, that this condition's short cut gives the results of its calls."""
    _with_short_cuts.add(kind)
    return kind


def offers_short_cuts(part: object) -> bool:
    """Whether the exact class of *part*, a stop condition, has declared its short cut."""
    return type(part) in _with_short_cuts


# Processors


@runtime_checkable
class Composed(Protocol):
    """A processor that applies others in order, such as a chain."""

    processors: tuple[Processor, ...]
    """The processors, in order."""


def stages_of(processors: Processor | None) -> tuple[Processor, ...]:
    """The processors of a chain, a single processor as a tuple of one, or none for None."""
    if isinstance(processors, Composed):
        return processors.processors
    return () if processors is None else (processors,)


@runtime_checkable
class KeepsArgmax(Protocol):
    """A processor that leaves the largest logit the largest, so greedy runs omit it at the chain's end."""

    keeps_argmax: bool
    """Whether it does. Rounding may tie the largest with another."""


@runtime_checkable
class ShiftInvariant(Protocol):
    """A processor whose distribution does not change when a constant is added to a row of logits."""

    shift_invariant: bool
    """Whether it is."""


@runtime_checkable
class Local(Protocol):
    """A processor that reads no ids and ignores ``-inf``, so it may run on the survivors of a truncation."""

    local: bool
    """Whether it is. One that declares this, True or False, must keep no reference to its logits."""


@runtime_checkable
class DeviceSafe(Protocol):
    """A processor of operations that neuronx-cc compiles, so it may become part of a forward."""

    device_safe: bool
    """Whether it is."""


@runtime_checkable
class RowIndependent(Protocol):
    """
    A processor, sampler or feeder whose result for a row does not depend on which row of the batch it is.

    It has no parameter with one value per row and no state of a row. So rows of several requests with this
    processor may be processed together; and requests may take any row of this feeder.
    """

    row_independent: bool
    """Whether it is."""


@runtime_checkable
class CallsFunctions(Protocol):
    """A processor of ours that calls a function of its user's."""

    calls_functions: bool
    """Whether it does."""


def runs_foreign_code(part: object) -> bool:
    """Whether *part* is not ours, or calls a function of its user's: it may run a model of its own."""
    ours = type(part).__module__.partition(".")[0] == __name__.partition(".")[0]
    return not ours or (isinstance(part, CallsFunctions) and part.calls_functions)


def is_row_independent(part: object) -> bool:
    """Whether *part* is :attr:`~RowIndependent.row_independent`; True if it does not say so."""
    return not isinstance(part, RowIndependent) or part.row_independent


# Samplers


@runtime_checkable
class Seeded(Protocol):
    """A sampler with a seed, which a generator folds into the rows' random streams."""

    seed: int | None
    """Any integer; None for a fresh one at each call."""


@runtime_checkable
class Saves(Protocol):
    """A decoder that can be saved, with a tokenizer."""

    def save(self, folder: str | PathLike[str], tokenizer: Any = None) -> None:
        """Write everything that loading it needs into *folder*."""


@runtime_checkable
class TakesArgmax(Protocol):
    """A sampler that takes the largest logit, so final stages that keep the argmax are omitted."""

    takes_argmax: bool
    """Whether it does."""


@runtime_checkable
class DrawsSoftmax(Protocol):
    """A sampler that samples from the softmax, as verifications that compare distributions require."""

    draws_softmax: bool
    """Whether it does."""


@runtime_checkable
class RanksTokens(Protocol):
    """A sampler that ranks tokens, as draft trees require."""

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """The *n* top choices ``[batch, width, n]``, first the token that a call samples."""


@runtime_checkable
class MeasuresGap(Protocol):
    """A sampler that measures the margin of its choice, for :attr:`~.generator.Generator.record_gap`."""

    def gap(self, logits: Tensor, history: History) -> Tensor:
        """The margin of each column's token over the next, ``[batch, width]`` float64."""


@runtime_checkable
class DeclaresState(Protocol):
    """A sampler that may depend on past logits; if so, it is refused under speculation."""

    is_stateful: ClassVar[bool]
    """Whether it does."""


@runtime_checkable
class BeginsRuns(Protocol):
    """A sampler that is a configuration; each run begins its own."""

    def begin(self, batch: int) -> Sampler:
        """The sampler of one run over *batch* rows."""


@runtime_checkable
class StatefulSampler(DeclaresState, BeginsRuns, Protocol):
    """
    A sampler that depends on past logits, and so is no function of the history.

    It is a configuration; :meth:`begin` makes the sampler of one run, which holds its state. It
    cannot run under speculation, which would have to undo the state of rejected draft tokens.
    """


def takes_argmax(sampler: object) -> bool:
    """Whether *sampler* takes the largest logit; False if undeclared."""
    return isinstance(sampler, TakesArgmax) and sampler.takes_argmax


def draws_softmax(sampler: object) -> bool:
    """Whether *sampler* is known to draw from the softmax of the logits."""
    return isinstance(sampler, DrawsSoftmax) and sampler.draws_softmax


def is_stateful(sampler: object) -> bool:
    """Whether *sampler* depends on past logits."""
    return isinstance(sampler, DeclaresState) and sampler.is_stateful


# Stop conditions

TokenCode: TypeAlias = Callable[[int, int, int, int], int]
"""
The code of one new token: ``(token, length, prompt, row)``; *length* includes the token.

It is told every new token of a row in order, and may keep them. After an error in a step, tokens of that
step are told again.
"""


@runtime_checkable
class TellsByToken(Protocol):
    """A condition with a short cut for one token a row, without arrays."""

    def by_token(self) -> TokenCode | None:
        """The code of one new token, given a row's tokens one by one; None if it depends on more."""


@runtime_checkable
class ChecksRows(Protocol):
    """A condition with a value for each row; checked when a run begins."""

    def check_rows(self, rows: int) -> None:
        """Raise ``ValueError`` where it has no value for each of *rows* rows."""


@runtime_checkable
class BeginsStop(Protocol):
    """A condition with state; each run begins its own."""

    def begin(self) -> StopCondition:
        """The condition for one run."""


@runtime_checkable
class CombinesConditions(Protocol):
    """A condition that is composed of others."""

    conditions: Sequence[StopCondition]
    """The others."""


@runtime_checkable
class ReadsText(Protocol):
    """A condition that decodes the ids, which a generator with a tokenizer must decode in the same way."""

    skip_special_tokens: bool
    """Whether special tokens are left out."""


# Streamers


@runtime_checkable
class HearsPrompts(Protocol):
    """A streamer that receives the prompts before the generation starts."""

    def begin(self, prompts: list[list[int]]) -> None:
        """Take the ids of every row's prompt."""


@runtime_checkable
class HearsFailure(Protocol):
    """A streamer that receives errors; others get ``end``."""

    def fail(self, error: BaseException) -> None:
        """Take the exception of the generation, in place of ``end``."""


# Speculation


@runtime_checkable
class PreparesLength(Protocol):
    """A draft length that examines the target when a generator is built."""

    def prepare(self, decoder: "AnyDecoder", exact_width: bool) -> None:
        """Examine the target without changing its cache."""


@runtime_checkable
class WeighsEvidence(Protocol):
    """A draft length that decides by the evidence for the drafts, where the drafter gives some."""

    def weigh(self, evidence: Sequence[int]) -> int:
        """
        The draft length of each row in the next step, given each row's evidence; 0 is no draft.

        Rows that a longer forward delays without drafting for them, of other requests too, have no evidence.
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
        Propose as :meth:`~.protocols.Drafter.propose`, but end a row's draft where *goes_on* is False.

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
    """Whether it reads :attr:`~.protocols.Draft.scores`."""


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
            The number of tokens that each row still lacks, ``[rows]`` int64.
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


# Decoders


@runtime_checkable
class HasSpans(Protocol):
    """A decoder with KV buckets: it may attend to leading positions only (``span=`` of a forward)."""

    spans: Sequence[int]
    """The spans (KV buckets) in positions, ascending; the last is all of them."""


@runtime_checkable
class DescribesModel(Protocol):
    """A decoder that was made from a Hugging Face model, and keeps what the model says of itself."""

    @property
    def model_config(self) -> Any:
        """The model's ``PretrainedConfig``."""

    @property
    def generation_config(self) -> Any:
        """The model's ``GenerationConfig``; not to be modified."""


@runtime_checkable
class OffersFeeder(Protocol):
    """
    What a generation can run on in place of one decoder: several that are combined, or one that is guided.

    It needs no ``forward``, since its logits depend on more than the ids of a row.
    """

    @property
    def shape(self) -> DecoderShape:
        """The rows, positions, vocabulary and columns that a generation has."""

    @property
    def decoders(self) -> tuple[Decoder, ...]:
        """The decoders that it feeds; each takes part in every forward."""

    def feeder(self) -> TokenFeeder:
        """What a generation feeds in place of a decoder's slots; always the same object."""


AnyDecoder: TypeAlias = Decoder | OffersFeeder
"""What a generation runs on."""


def decoders_of(decoder: AnyDecoder) -> tuple[Decoder, ...]:
    """The decoders that *decoder* stands for: itself, or those that its feeder feeds."""
    return decoder.decoders if isinstance(decoder, OffersFeeder) else (decoder,)


@runtime_checkable
class ReadsPrompts(Protocol):
    """A feeder, which may feed what depends on where a row's prompt ends, such as a negative prompt."""

    reads_prompts: bool
    """Whether it does: then its logits do not follow from a row's tokens alone."""


def reads_prompts(feeder: object) -> bool:
    """Whether *feeder* is one that :attr:`~ReadsPrompts.reads_prompts`; False if it does not say so."""
    return isinstance(feeder, ReadsPrompts) and feeder.reads_prompts


@runtime_checkable
class CombinesByColumn(Protocol):
    """A combination of several decoders' logits that declares what a column of it depends on."""

    by_column: bool
    """Whether a column's result is the same bits whatever other rows and columns there are."""


@runtime_checkable
class CopiesRows(Protocol):
    """A decoder that can copy the cache of one row to another, so that a shared prefix is fed once."""

    @property
    def copies_rows(self) -> bool:
        """Whether it can."""
        ...

    def copy_rows(self, source: Tensor, upto: int) -> None:
        """
        Replace leading slots of each row by those of another.

        Args:
            source: The row that each row becomes a copy of, ``[batch]`` int64 on the host; its own number
                leaves it as it is. All rows are read before one is written, so a permutation is right.

            upto: The number of leading slots to copy, at most ``max_length``. What lies beyond is undefined
                in rows that are written.

        Raises:
            ValueError: A wrong shape, row or number. Nothing has been written.
        """
        ...


def copies_rows(decoder: object) -> bool:
    """Whether *decoder* is known to copy rows."""
    return isinstance(decoder, CopiesRows) and decoder.copies_rows


@runtime_checkable
class FeedsRows(Protocol):
    """A decoder with forwards of one row: a prompt is fed without computing the rows beside it."""

    @property
    def row_widths(self) -> tuple[int, ...]:
        """Columns of these forwards, ascending, of ``shape.widths``; empty if there are none."""
        ...

    def forward_row(self, ids: Tensor, cache_pos: Tensor, row: int) -> Tensor:
        """
        Write *ids* into the cache of one row, as :meth:`~.protocols.Decoder.forward` does.

        Args:
            ids: Tokens to feed, ``[1, width]`` int64, *width* one of :attr:`row_widths`; -1 is padding.

            cache_pos: Position of the first column, ``[1]`` int64.

            row: The row; the others are left as they are.

        Returns:
            Logits ``[1, width, vocab]`` or, if *width* exceeds ``shape.scored_width``, ``[1, 1, vocab]``, as
            of a forward.

        Raises:
            ValueError: A wrong width, row, id or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        ...


def row_widths(decoder: object) -> tuple[int, ...]:
    """Columns of the forwards of one row of *decoder*; empty if there are none."""
    return tuple(decoder.row_widths) if isinstance(decoder, FeedsRows) else ()


class QueuedSample(Protocol):
    """The sample of a forward of one column, which the device may still be computing."""

    def read(self) -> Tensor:
        """
        Wait for that forward, not for later ones.

        Returns:
            Ids ``[batch, 1]`` int64 on the host, -1 where no token is possible; undefined in idle rows.
        """
        ...


@runtime_checkable
class QueuesForwards(Protocol):
    """
    A decoder that samples on the device and can run one forward ahead of the host.

    The ids that a forward samples stay on the device and are fed to the next one, which is queued before
    the host reads them. If the host then stops a row, its slot at the end is overwritten by position like
    any other, so nothing has to be undone.
    """

    async_mode: bool
    """Whether a generation queues forwards. The chain must then not read the ids of the history."""

    def queue_and_sample(
        self, ids: Tensor | QueuedSample, cache_pos: Tensor, history: History, rows: Tensor
    ) -> QueuedSample:
        """
        Queue a forward of one column and the sample after it; do not wait for either.

        Forwards run in the order of the calls, those of :meth:`~.protocols.Decoder.forward` included.

        Args:
            ids: Tokens ``[batch, 1]`` on the host, or an earlier sample of this decoder, read or not. A
                token of -1 feeds nothing.

            cache_pos: As in a forward.

            history: The tokens up to the column, ``[batch, 1]``, as in ``forward_and_sample``; its ids lack
                those of a sample that has not been read.

            rows: ``[batch]`` bool; the others are idle.
        """
        ...


@runtime_checkable
class AdvisesWidth(Protocol):
    """An adapter of another toolkit's decoder, which can name that toolkit's setting for a width."""

    def advise_width(self, columns: int) -> str:
        """How to make it score so many columns, as a sentence for an error message."""


@runtime_checkable
class BitExact(Protocol):
    """A decoder that says whether rounding depends on the shape of its forwards."""

    @property
    def bit_exact(self) -> bool:
        """
        Whether it is proved that a column's logits are the same bits at every width, batch and span.

        Then speculation, batches and reused prefixes give the tokens of plain decoding.
        """
        ...


def is_bit_exact(decoder: object) -> bool:
    """Whether *decoder* is :attr:`~BitExact.bit_exact`; False if it does not say so."""
    return isinstance(decoder, BitExact) and decoder.bit_exact


@runtime_checkable
class SkipsPadding(Protocol):
    """A decoder that says whether columns of padding take time."""

    @property
    def skips_padding(self) -> bool:
        """Whether a forward takes less time the more of its columns are padding."""
        ...


def does_skip_padding(decoder: object) -> bool:
    """Whether *decoder* :attr:`~SkipsPadding.skips_padding`; False if it does not say so."""
    return isinstance(decoder, SkipsPadding) and decoder.skips_padding


@runtime_checkable
class RunsInLockstep(Protocol):
    """A decoder that may be divided over processes, each of which makes the same forwards."""

    @property
    def in_lockstep(self) -> bool:
        """Whether it is: then no part may decide by time, which differs between processes."""
        ...


def runs_in_lockstep(decoder: object) -> bool:
    """Whether *decoder* is :attr:`~RunsInLockstep.in_lockstep`; False if it does not say so."""
    return isinstance(decoder, RunsInLockstep) and decoder.in_lockstep


def tree_widths(decoder: object) -> tuple[int, ...]:
    """Columns of the tree forwards of *decoder*; empty if there are none."""
    return tuple(decoder.tree_widths) if isinstance(decoder, ScoresTrees) else ()
