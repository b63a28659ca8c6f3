"""
Optional capabilities of the parts.

Each class here is one capability. A part offers it by having its members, whatever it inherits
from. It is looked up once, when a generator, a chain or the slots of a decoder are built.
"""

from .decoders import (
    AdvisesWidth as AdvisesWidth,
    AnyDecoder as AnyDecoder,
    BitExact as BitExact,
    CombinesByColumn as CombinesByColumn,
    CopiesRows as CopiesRows,
    DescribesModel as DescribesModel,
    FeedsRows as FeedsRows,
    HasSpans as HasSpans,
    OffersFeeder as OffersFeeder,
    QueuedSample as QueuedSample,
    QueuesForwards as QueuesForwards,
    ReadsPrompts as ReadsPrompts,
    RunsInLockstep as RunsInLockstep,
    Saves as Saves,
    SkipsPadding as SkipsPadding,
    copies_rows as copies_rows,
    decoders_of as decoders_of,
    does_skip_padding as does_skip_padding,
    is_bit_exact as is_bit_exact,
    reads_prompts as reads_prompts,
    row_widths as row_widths,
    runs_in_lockstep as runs_in_lockstep,
    tree_widths as tree_widths,
)
from .processors import (
    CallsFunctions as CallsFunctions,
    Composed as Composed,
    DeviceSafe as DeviceSafe,
    KeepsArgmax as KeepsArgmax,
    Local as Local,
    RowIndependent as RowIndependent,
    ShiftInvariant as ShiftInvariant,
    is_row_independent as is_row_independent,
    runs_foreign_code as runs_foreign_code,
    stages_of as stages_of,
)
from .samplers import (
    BeginsRuns as BeginsRuns,
    DeclaresState as DeclaresState,
    DrawsSoftmax as DrawsSoftmax,
    MeasuresGap as MeasuresGap,
    RanksTokens as RanksTokens,
    Seeded as Seeded,
    StatefulSampler as StatefulSampler,
    TakesArgmax as TakesArgmax,
    draws_softmax as draws_softmax,
    is_stateful as is_stateful,
    takes_argmax as takes_argmax,
)
from .speculation import (
    CatchesUp as CatchesUp,
    ChecksTarget as ChecksTarget,
    ComparesScores as ComparesScores,
    DraftsWhile as DraftsWhile,
    EndsDrafts as EndsDrafts,
    ForeseesTokens as ForeseesTokens,
    GivesEvidence as GivesEvidence,
    GoesOn as GoesOn,
    GrowsTrees as GrowsTrees,
    PausesDrafts as PausesDrafts,
    PreparesLength as PreparesLength,
    ReadsTargetTokens as ReadsTargetTokens,
    TakesTrees as TakesTrees,
    WeighsEvidence as WeighsEvidence,
    compares_scores as compares_scores,
    reads_target_tokens as reads_target_tokens,
    takes_trees as takes_trees,
    tree_nodes as tree_nodes,
)
from .stop_conditions import (
    BeginsStop as BeginsStop,
    ChecksRows as ChecksRows,
    CombinesConditions as CombinesConditions,
    ReadsText as ReadsText,
    TellsByToken as TellsByToken,
    TokenCode as TokenCode,
    has_short_cuts as has_short_cuts,
    offers_short_cuts as offers_short_cuts,
)
from .streamers import (
    HearsFailure as HearsFailure,
    HearsPrompts as HearsPrompts,
)
