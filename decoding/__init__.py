"""The protocols, the decoding loop, and its parts."""

from typing import TYPE_CHECKING

from .lazy_names import lazy_names

if TYPE_CHECKING:
    from .cache.slots import Slots as Slots
    from .engine.exact_match_verification import ExactMatch as ExactMatch
    from .engine.no_effect import NoEffectWarning as NoEffectWarning
    from .generator import Generator as Generator
    from .history import History as History
    from .interop.transformers_criteria import (
        TransformersCriteria as TransformersCriteria,
        stop_from_transformers as stop_from_transformers,
    )
    from .interop.transformers_model import TransformersModel as TransformersModel
    from .optional_protocols import StatefulSampler as StatefulSampler, has_short_cuts as has_short_cuts
    from .protocols import (
        Decoder as Decoder,
        DecoderShape as DecoderShape,
        Draft as Draft,
        Drafter as Drafter,
        DraftLength as DraftLength,
        Finish as Finish,
        Processor as Processor,
        Sampler as Sampler,
        SamplesOnDevice as SamplesOnDevice,
        ScoresTrees as ScoresTrees,
        SpeculationStep as SpeculationStep,
        StopCondition as StopCondition,
        Verification as Verification,
    )
    from .results.events import Event as Event
    from .results.generation import Generation as Generation
    from .results.logprobs import Logprobs as Logprobs, TokenLogprob as TokenLogprob
    from .results.statistics import Statistics as Statistics
    from .sampling.adaptive_p import AdaptiveP as AdaptiveP, AdaptivePRun as AdaptivePRun
    from .sampling.greedy import Greedy as Greedy
    from .sampling.mirostat import Mirostat as Mirostat, MirostatRun as MirostatRun
    from .sampling.pipeline import SamplingPipeline as SamplingPipeline
    from .sampling.sample import Sample as Sample
    from .sampling_placement import Place as Place, Placement as Placement
    from .serving.batcher import Batcher as Batcher
    from .serving.conversation import Turn as Turn
    from .serving.open_requests import BatcherFullError as BatcherFullError
    from .serving.request_handle import RequestHandle as RequestHandle
    from .serving.row_pin import RowPin as RowPin
    from .serving.session import Session as Session, SessionFullError as SessionFullError
    from .stopping.composition import Stop as Stop
    from .stopping.consecutive import Consecutive as Consecutive
    from .stopping.end_of_sequence import EndOfSequence as EndOfSequence
    from .stopping.entropy import HighEntropy as HighEntropy, LowEntropy as LowEntropy
    from .stopping.low_confidence import LowConfidence as LowConfidence
    from .stopping.max_length import MaxLength as MaxLength
    from .stopping.max_new_tokens import MaxNewTokens as MaxNewTokens
    from .stopping.max_time import MaxTime as MaxTime
    from .stopping.not_before import NotBefore as NotBefore
    from .stopping.repetition_loop import RepetitionLoop as RepetitionLoop
    from .stopping.stop_sequences import StopSequences as StopSequences, TokenSequence as TokenSequence
    from .stopping.stop_strings import StopStrings as StopStrings
    from .stopping.stop_tokens import StopTokens as StopTokens
    from .stopping.stop_when import StopWhen as StopWhen
    from .strategies.beams.beam_search import BeamSearch as BeamSearch
    from .strategies.beams.generation import BeamGeneration as BeamGeneration
    from .strategies.beams.stochastic_beams import StochasticBeams as StochasticBeams
    from .strategies.best_of_n import BestOfN as BestOfN
    from .strategies.combinations import (
        Contrast as Contrast,
        MeanLogProbs as MeanLogProbs,
        MeanProbs as MeanProbs,
    )
    from .strategies.combined import Combined as Combined
    from .strategies.guided import Guided as Guided
    from .strategies.infilling import (
        InfillingPrompt as InfillingPrompt,
        InfillingTemplate as InfillingTemplate,
        infilling_prompt as infilling_prompt,
    )
    from .strategies.last_token_healing import heal_last_tokens as heal_last_tokens
    from .strategies.likelihood import LogLikelihood as LogLikelihood
    from .strategies.minimum_bayes_risk import MinimumBayesRisk as MinimumBayesRisk
    from .strategies.sample_sources import Batched as Batched
    from .strategies.scored_by import ScoredBy as ScoredBy
    from .strategies.self_consistency import SelfConsistency as SelfConsistency
    from .strategies.token_healing import (
        HealedPrompt as HealedPrompt,
        TokenHealing as TokenHealing,
        heal_prompt as heal_prompt,
    )
    from .text.detokenizer import Detokenizer as Detokenizer
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
