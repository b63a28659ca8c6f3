"""The protocols, the decoding loop, and its parts."""

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
    from .stopping.composition import Stop
    from .stopping.consecutive import Consecutive
    from .stopping.end_of_sequence import EndOfSequence
    from .stopping.entropy import HighEntropy, LowEntropy
    from .stopping.low_confidence import LowConfidence
    from .stopping.max_length import MaxLength
    from .stopping.max_new_tokens import MaxNewTokens
    from .stopping.max_time import MaxTime
    from .stopping.not_before import NotBefore
    from .stopping.repetition_loop import RepetitionLoop
    from .stopping.stop_sequences import StopSequences, TokenSequence
    from .stopping.stop_strings import StopStrings
    from .stopping.stop_tokens import StopTokens
    from .stopping.stop_when import StopWhen
    from .text.detokenizer import Detokenizer
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".cache.slots": "Slots",
            ".engine.exact_match": "ExactMatch",
            ".generator": "Generator",
            ".history": "History",
            ".interop.transformers_criteria": "TransformersCriteria stop_from_transformers",
            ".optional_protocols": "StatefulSampler has_short_cuts",
            ".placement": "Place Placement",
            ".protocols": (
                "Decoder DecoderShape Draft DraftLength Drafter Finish Processor Sampler SamplesOnDevice "
                "ScoresTrees SpeculationStep StopCondition Verification"
            ),
            ".results.events": "Event",
            ".results.generation": "Generation",
            ".results.logprobs": "Logprobs TokenLogprob",
            ".results.statistics": "Statistics",
            ".sampling.adaptive_p": "AdaptiveP AdaptivePRun",
            ".sampling.greedy": "Greedy",
            ".sampling.mirostat": "Mirostat MirostatRun",
            ".sampling.pipeline": "SamplingPipeline",
            ".sampling.sample": "Sample",
            ".stopping.composition": "Stop",
            ".stopping.consecutive": "Consecutive",
            ".stopping.end_of_sequence": "EndOfSequence",
            ".stopping.entropy": "HighEntropy LowEntropy",
            ".stopping.low_confidence": "LowConfidence",
            ".stopping.max_length": "MaxLength",
            ".stopping.max_new_tokens": "MaxNewTokens",
            ".stopping.max_time": "MaxTime",
            ".stopping.not_before": "NotBefore",
            ".stopping.repetition_loop": "RepetitionLoop",
            ".stopping.stop_sequences": "StopSequences TokenSequence",
            ".stopping.stop_strings": "StopStrings",
            ".stopping.stop_tokens": "StopTokens",
            ".stopping.stop_when": "StopWhen",
            ".text.detokenizer": "Detokenizer",
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
