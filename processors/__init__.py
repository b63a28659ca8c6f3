"""
Logits processors, one per file.

A processor is an immutable value and a pure function of logits ``[batch, width, vocab]`` and the
:class:`~decodekit.decoding.history.History` of each column; it returns logits of the same shape and
does not modify its input. A parameter is one number or one per row of the batch. ``a | b`` applies
*a*, then *b*; a chain is again a processor.
"""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from . import presets
    from .chain import Chain, Composable
    from .constraints.allowed_tokens import AllowedTokens
    from .constraints.bad_words import BadWords
    from .constraints.encoder_no_repeat_ngram import EncoderNoRepeatNgram
    from .constraints.forced_first_token import ForcedFirstToken
    from .constraints.forced_last_token import ForcedLastToken
    from .constraints.min_length import MinLength
    from .constraints.min_new_tokens import MinNewTokens
    from .constraints.no_repeat_ngram import NoRepeatNgram
    from .constraints.prefix_function import PrefixFunction
    from .constraints.suppress_first import SuppressFirst
    from .constraints.suppress_tokens import SuppressTokens
    from .constraints.thinking_budget import ThinkingBudget
    from .explanation import Explanation, explain
    from .grammar.grammar import Grammar
    from .grammar.llguidance import json_schema, lark, regex
    from .grammar.matcher import Language, Matcher
    from .interop.generation_config import GenerationParts, from_generation_config, to_generation_config
    from .interop.transformers_export import to_transformers
    from .interop.transformers_import import from_transformers
    from .interop.vllm_export import to_vllm
    from .penalties.dry import DRY
    from .penalties.encoder_repetition_penalty import EncoderRepetitionPenalty
    from .penalties.exponential_length_decay import ExponentialLengthDecay
    from .penalties.frequency_penalty import FrequencyPenalty
    from .penalties.logit_bias import LogitBias
    from .penalties.presence_penalty import PresencePenalty
    from .penalties.repetition_penalty import RepetitionPenalty
    from .penalties.sequence_bias import SequenceBias
    from .scaling.dynamic_temperature import DynamicTemperature
    from .scaling.remove_invalid import RemoveInvalid
    from .scaling.renormalise import Renormalise
    from .scaling.temperature import Temperature
    from .truncation.epsilon_cutoff import EpsilonCutoff
    from .truncation.eta_cutoff import EtaCutoff
    from .truncation.min_k import MinK
    from .truncation.min_p import MinP
    from .truncation.p_less import PLess
    from .truncation.top_h import TopH
    from .truncation.top_k import TopK
    from .truncation.top_n_sigma import TopNSigma
    from .truncation.top_p import TopP
    from .truncation.typical import Typical
    from .truncation.xtc import XTC
    from .watermark.kirchenbauer import KirchenbauerWatermark
    from .watermark.kirchenbauer_detector import KirchenbauerDetection, KirchenbauerDetector
    from .watermark.synthid import SynthIDWatermark
    from .watermark.synthid_detector import SynthIDDetection, SynthIDDetector
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".": "presets",
            ".chain": "Chain Composable",
            ".constraints.allowed_tokens": "AllowedTokens",
            ".constraints.bad_words": "BadWords",
            ".constraints.encoder_no_repeat_ngram": "EncoderNoRepeatNgram",
            ".constraints.forced_first_token": "ForcedFirstToken",
            ".constraints.forced_last_token": "ForcedLastToken",
            ".constraints.min_length": "MinLength",
            ".constraints.min_new_tokens": "MinNewTokens",
            ".constraints.no_repeat_ngram": "NoRepeatNgram",
            ".constraints.prefix_function": "PrefixFunction",
            ".constraints.suppress_first": "SuppressFirst",
            ".constraints.suppress_tokens": "SuppressTokens",
            ".constraints.thinking_budget": "ThinkingBudget",
            ".explanation": "Explanation explain",
            ".grammar.grammar": "Grammar",
            ".grammar.llguidance": "json_schema lark regex",
            ".grammar.matcher": "Language Matcher",
            ".interop.generation_config": "GenerationParts from_generation_config to_generation_config",
            ".interop.transformers_export": "to_transformers",
            ".interop.transformers_import": "from_transformers",
            ".interop.vllm_export": "to_vllm",
            ".penalties.dry": "DRY",
            ".penalties.encoder_repetition_penalty": "EncoderRepetitionPenalty",
            ".penalties.exponential_length_decay": "ExponentialLengthDecay",
            ".penalties.frequency_penalty": "FrequencyPenalty",
            ".penalties.logit_bias": "LogitBias",
            ".penalties.presence_penalty": "PresencePenalty",
            ".penalties.repetition_penalty": "RepetitionPenalty",
            ".penalties.sequence_bias": "SequenceBias",
            ".scaling.dynamic_temperature": "DynamicTemperature",
            ".scaling.remove_invalid": "RemoveInvalid",
            ".scaling.renormalise": "Renormalise",
            ".scaling.temperature": "Temperature",
            ".truncation.epsilon_cutoff": "EpsilonCutoff",
            ".truncation.eta_cutoff": "EtaCutoff",
            ".truncation.min_k": "MinK",
            ".truncation.min_p": "MinP",
            ".truncation.p_less": "PLess",
            ".truncation.top_h": "TopH",
            ".truncation.top_k": "TopK",
            ".truncation.top_n_sigma": "TopNSigma",
            ".truncation.top_p": "TopP",
            ".truncation.typical": "Typical",
            ".truncation.xtc": "XTC",
            ".watermark.kirchenbauer": "KirchenbauerWatermark",
            ".watermark.kirchenbauer_detector": "KirchenbauerDetection KirchenbauerDetector",
            ".watermark.synthid": "SynthIDWatermark",
            ".watermark.synthid_detector": "SynthIDDetection SynthIDDetector",
        },
    )

__all__ = [
    "DRY",
    "XTC",
    "AllowedTokens",
    "BadWords",
    "Chain",
    "Composable",
    "DynamicTemperature",
    "EncoderNoRepeatNgram",
    "EncoderRepetitionPenalty",
    "EpsilonCutoff",
    "EtaCutoff",
    "Explanation",
    "ExponentialLengthDecay",
    "ForcedFirstToken",
    "ForcedLastToken",
    "FrequencyPenalty",
    "GenerationParts",
    "Grammar",
    "KirchenbauerDetection",
    "KirchenbauerDetector",
    "KirchenbauerWatermark",
    "Language",
    "LogitBias",
    "Matcher",
    "MinK",
    "MinLength",
    "MinNewTokens",
    "MinP",
    "NoRepeatNgram",
    "PLess",
    "PrefixFunction",
    "PresencePenalty",
    "RemoveInvalid",
    "Renormalise",
    "RepetitionPenalty",
    "SequenceBias",
    "SuppressFirst",
    "SuppressTokens",
    "SynthIDDetection",
    "SynthIDDetector",
    "SynthIDWatermark",
    "Temperature",
    "ThinkingBudget",
    "TopH",
    "TopK",
    "TopNSigma",
    "TopP",
    "Typical",
    "explain",
    "from_generation_config",
    "from_transformers",
    "json_schema",
    "lark",
    "presets",
    "regex",
    "to_generation_config",
    "to_transformers",
    "to_vllm",
]
