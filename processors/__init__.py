"""
Logits processors, one per file.

A processor is an immutable value and a pure function of logits ``[batch, width, vocab]`` and the
:class:`~decodekit.decoding.history.History` of each column; it returns logits of the same shape and
does not modify its input. A parameter is one number or one per row of the batch. ``a | b`` applies
*a*, then *b*; a chain is again a processor.
"""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names
from ..decoding.sampling.short_cuts import register_module

if TYPE_CHECKING:
    from . import presets as presets
    from .chain import Chain as Chain, Composable as Composable
    from .constraints.allowed_sequences import AllowedSequences as AllowedSequences
    from .constraints.allowed_texts import AllowedTexts as AllowedTexts
    from .constraints.allowed_tokens import AllowedTokens as AllowedTokens
    from .constraints.bad_words import BadWords as BadWords
    from .constraints.encoder_no_repeat_ngram import EncoderNoRepeatNgram as EncoderNoRepeatNgram
    from .constraints.forced_first_token import ForcedFirstToken as ForcedFirstToken
    from .constraints.forced_last_token import ForcedLastToken as ForcedLastToken
    from .constraints.forced_prefix import ForcedPrefix as ForcedPrefix
    from .constraints.min_length import MinLength as MinLength
    from .constraints.min_new_tokens import MinNewTokens as MinNewTokens
    from .constraints.no_repeat_ngram import NoRepeatNgram as NoRepeatNgram
    from .constraints.prefix_function import PrefixFunction as PrefixFunction
    from .constraints.suppress_first import SuppressFirst as SuppressFirst
    from .constraints.suppress_tokens import SuppressTokens as SuppressTokens
    from .constraints.thinking_budget import ThinkingBudget as ThinkingBudget
    from .explanation import Explanation as Explanation, explain as explain
    from .grammar.grammar import Grammar as Grammar
    from .grammar.llguidance import json_schema as json_schema, lark as lark, regex as regex
    from .grammar.matcher import Language as Language, Matcher as Matcher
    from .interop.generation_config import (
        GenerationParts as GenerationParts,
        from_generation_config as from_generation_config,
        to_generation_config as to_generation_config,
    )
    from .interop.transformers_export import to_transformers as to_transformers
    from .interop.transformers_import import from_transformers as from_transformers
    from .interop.vllm_export import to_vllm as to_vllm
    from .interop.vllm_neuron import attach_to_vllm_neuron as attach_to_vllm_neuron
    from .penalties.dry import DRY as DRY
    from .penalties.encoder_repetition_penalty import EncoderRepetitionPenalty as EncoderRepetitionPenalty
    from .penalties.exponential_length_decay import ExponentialLengthDecay as ExponentialLengthDecay
    from .penalties.frequency_penalty import FrequencyPenalty as FrequencyPenalty
    from .penalties.logit_bias import LogitBias as LogitBias
    from .penalties.presence_penalty import PresencePenalty as PresencePenalty
    from .penalties.repetition_penalty import RepetitionPenalty as RepetitionPenalty
    from .penalties.sequence_bias import SequenceBias as SequenceBias
    from .scaling.dynamic_temperature import DynamicTemperature as DynamicTemperature
    from .scaling.remove_invalid import RemoveInvalid as RemoveInvalid
    from .scaling.renormalise import Renormalise as Renormalise
    from .scaling.temperature import Temperature as Temperature
    from .truncation.epsilon_cutoff import EpsilonCutoff as EpsilonCutoff
    from .truncation.eta_cutoff import EtaCutoff as EtaCutoff
    from .truncation.min_k import MinK as MinK
    from .truncation.min_p import MinP as MinP
    from .truncation.p_less import PLess as PLess
    from .truncation.top_h import TopH as TopH
    from .truncation.top_k import TopK as TopK
    from .truncation.top_n_sigma import TopNSigma as TopNSigma
    from .truncation.top_p import TopP as TopP
    from .truncation.typical import Typical as Typical
    from .truncation.xtc import XTC as XTC
    from .watermark.kirchenbauer import KirchenbauerWatermark as KirchenbauerWatermark
    from .watermark.kirchenbauer_detector import (
        KirchenbauerDetection as KirchenbauerDetection,
        KirchenbauerDetector as KirchenbauerDetector,
    )
    from .watermark.synthid import SynthIDWatermark as SynthIDWatermark
    from .watermark.synthid_detector import (
        SynthIDDetection as SynthIDDetection,
        SynthIDDetector as SynthIDDetector,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

register_module(f"{__name__}.fast")
