"""The contracts, the loop, and everything that the loop is made of."""

from typing import TYPE_CHECKING

from .lazy_names import lazy_names

if TYPE_CHECKING:
    from .cache.slots import Slots
    from .engine.exact_match import ExactMatch
    from .generator import Generator
    from .history import History
    from .interop.transformers_criteria import TransformersCriteria, stop_from_transformers
    from .optional_protocols import StatefulSampler, has_short_cuts
    from .placement import Place, Placement
    from .protocols import (
        Decoder,
        DecoderShape,
        Draft,
        Drafter,
        DraftLength,
        Finish,
        Processor,
        Sampler,
        SamplesOnDevice,
        ScoresTrees,
        SpeculationStep,
        StopCondition,
        Verification,
    )
    from .results.events import Event
    from .results.generation import Generation
    from .results.logprobs import Logprobs, TokenLogprob
    from .results.statistics import Statistics
    from .sampling.adaptive_p import AdaptiveP, AdaptivePRun
    from .sampling.greedy import Greedy
    from .sampling.mirostat import Mirostat, MirostatRun
    from .sampling.pipeline import SamplingPipeline
    from .sampling.sample import Sample
    from .stopping.composition import EndOfSequence, MaxLength, MaxNewTokens, Stop, StopTokens
    from .stopping.consecutive import Consecutive
    from .stopping.entropy import HighEntropy, LowEntropy
    from .stopping.low_confidence import LowConfidence
    from .stopping.max_time import MaxTime
    from .stopping.not_before import NotBefore
    from .stopping.repetition_loop import RepetitionLoop
    from .stopping.stop_sequences import StopSequences, TokenSequence
    from .stopping.stop_strings import StopStrings
    from .stopping.stop_when import StopWhen
    from .text.detokenizer import Detokenizer
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".sampling.adaptive_p": "AdaptiveP AdaptivePRun",
            ".engine.exact_match": "ExactMatch",
            ".sampling.pipeline": "SamplingPipeline",
            ".stopping.consecutive": "Consecutive",
            ".stopping.entropy": "HighEntropy LowEntropy",
            ".results.events": "Event",
            ".results.generation": "Generation",
            ".generator": "Generator",
            ".sampling.greedy": "Greedy",
            ".history": "History",
            ".results.logprobs": "Logprobs TokenLogprob",
            ".stopping.low_confidence": "LowConfidence",
            ".stopping.max_time": "MaxTime",
            ".sampling.mirostat": "Mirostat MirostatRun",
            ".stopping.not_before": "NotBefore",
            ".optional_protocols": "StatefulSampler has_short_cuts",
            ".placement": "Place Placement",
            ".protocols": (
                "SamplesOnDevice Decoder DecoderShape Draft Drafter DraftLength Finish Processor SpeculationStep "
                "ScoresTrees Sampler StopCondition Verification"
            ),
            ".stopping.repetition_loop": "RepetitionLoop",
            ".sampling.sample": "Sample",
            ".cache.slots": "Slots",
            ".results.statistics": "Statistics",
            ".stopping.stop_sequences": "StopSequences TokenSequence",
            ".stopping.stop_strings": "StopStrings",
            ".stopping.stop_when": "StopWhen",
            ".stopping.composition": "EndOfSequence MaxLength MaxNewTokens Stop StopTokens",
            ".text.detokenizer": "Detokenizer",
            ".interop.transformers_criteria": "TransformersCriteria stop_from_transformers",
        },
    )

__all__ = [
    "AdaptiveP",
    "AdaptivePRun",
    "Consecutive",
    "Decoder",
    "DecoderShape",
    "Detokenizer",
    "Draft",
    "DraftLength",
    "Drafter",
    "EndOfSequence",
    "Event",
    "ExactMatch",
    "Finish",
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
    "Sample",
    "Sampler",
    "SamplesOnDevice",
    "SamplingPipeline",
    "ScoresTrees",
    "Slots",
    "SpeculationStep",
    "StatefulSampler",
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
