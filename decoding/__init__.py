"""The contracts, the loop, and everything that the loop is made of."""

from typing import TYPE_CHECKING

from .lazy_names import lazy_names

if TYPE_CHECKING:
    from .agreement import Agreement
    from .cache.slots import Slots
    from .consecutive import Consecutive
    from .entropy import HighEntropy, LowEntropy
    from .events import Event
    from .generation import Generation
    from .generator import Generator
    from .history import History
    from .logprobs import Logprobs, TokenLogprob
    from .low_confidence import LowConfidence
    from .max_time import MaxTime
    from .not_before import NotBefore
    from .optional_protocols import FollowsLogits, has_short_cuts
    from .placement import Place, Placement
    from .protocols import (
        Chooses,
        Decoder,
        DecoderShape,
        Draft,
        Drafter,
        DraftLength,
        Ending,
        Processor,
        Round,
        ScoresTrees,
        Selection,
        StopCondition,
        Verification,
    )
    from .repetition_loop import RepetitionLoop
    from .sampling.adaptive_p import AdaptiveP, AdaptivePRun
    from .sampling.greedy import Greedy
    from .sampling.mirostat import Mirostat, MirostatRun
    from .sampling.pipeline import Choose
    from .sampling.sample import Sample
    from .statistics import Statistics
    from .stop_sequences import StopSequences, TokenSequence
    from .stop_strings import StopStrings
    from .stop_when import StopWhen
    from .stopping import EndOfSequence, MaxLength, MaxNewTokens, Stop, StopTokens
    from .text.detokenizer import Detokenizer
    from .transformers_criteria import TransformersCriteria, stop_from_transformers
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".sampling.adaptive_p": "AdaptiveP AdaptivePRun",
            ".agreement": "Agreement",
            ".sampling.pipeline": "Choose",
            ".consecutive": "Consecutive",
            ".entropy": "HighEntropy LowEntropy",
            ".events": "Event",
            ".generation": "Generation",
            ".generator": "Generator",
            ".sampling.greedy": "Greedy",
            ".history": "History",
            ".logprobs": "Logprobs TokenLogprob",
            ".low_confidence": "LowConfidence",
            ".max_time": "MaxTime",
            ".sampling.mirostat": "Mirostat MirostatRun",
            ".not_before": "NotBefore",
            ".optional_protocols": "FollowsLogits has_short_cuts",
            ".placement": "Place Placement",
            ".protocols": (
                "Chooses Decoder DecoderShape Draft Drafter DraftLength Ending Processor Round "
                "ScoresTrees Selection StopCondition Verification"
            ),
            ".repetition_loop": "RepetitionLoop",
            ".sampling.sample": "Sample",
            ".cache.slots": "Slots",
            ".statistics": "Statistics",
            ".stop_sequences": "StopSequences TokenSequence",
            ".stop_strings": "StopStrings",
            ".stop_when": "StopWhen",
            ".stopping": "EndOfSequence MaxLength MaxNewTokens Stop StopTokens",
            ".text.detokenizer": "Detokenizer",
            ".transformers_criteria": "TransformersCriteria stop_from_transformers",
        },
    )

__all__ = [
    "AdaptiveP",
    "AdaptivePRun",
    "Agreement",
    "Choose",
    "Chooses",
    "Consecutive",
    "Decoder",
    "DecoderShape",
    "Detokenizer",
    "Draft",
    "DraftLength",
    "Drafter",
    "EndOfSequence",
    "Ending",
    "Event",
    "FollowsLogits",
    "Generation",
    "Generator",
    "Greedy",
    "HighEntropy",
    "History",
    "Logprobs",
    "LowConfidence",
    "LowEntropy",
    "MaxLength",
    "MaxNewTokens",
    "MaxTime",
    "Mirostat",
    "MirostatRun",
    "NotBefore",
    "Place",
    "Placement",
    "Processor",
    "RepetitionLoop",
    "Round",
    "Sample",
    "ScoresTrees",
    "Selection",
    "Slots",
    "Statistics",
    "Stop",
    "StopCondition",
    "StopSequences",
    "StopStrings",
    "StopTokens",
    "StopWhen",
    "TokenLogprob",
    "TokenSequence",
    "TransformersCriteria",
    "Verification",
    "has_short_cuts",
    "stop_from_transformers",
]
