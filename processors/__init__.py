"""
What reshapes the scores before a token is chosen, one processor a file.

A processor is a frozen value and a pure function: logits ``[batch, width, vocab]`` and the
:class:`~decodekit.decoding.history.History` of each column go in, logits of the same shape come
out, and the input is left as it was. A parameter is one number or one per row of the batch;
``a | b`` applies *a*, then *b*; a chain is again a processor.
"""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from . import presets
    from .allowed_tokens import AllowedTokens
    from .bad_words import BadWords
    from .chain import Chain, Composable
    from .dry import DRY
    from .dynamic_temperature import DynamicTemperature
    from .encoder_no_repeat_ngram import EncoderNoRepeatNgram
    from .encoder_repetition_penalty import EncoderRepetitionPenalty
    from .epsilon_cutoff import EpsilonCutoff
    from .eta_cutoff import EtaCutoff
    from .explanation import Explanation, explain
    from .exponential_length_decay import ExponentialLengthDecay
    from .forced_first import ForcedFirst
    from .forced_last import ForcedLast
    from .frequency_penalty import FrequencyPenalty
    from .generation_config import Parts, from_generation_config, to_generation_config
    from .grammar import Grammar
    from .kirchenbauer import KirchenbauerWatermark
    from .kirchenbauer_detector import KirchenbauerDetection, KirchenbauerDetector
    from .llguidance import json_schema, lark, regex
    from .logit_bias import LogitBias
    from .matcher import Language, Matcher
    from .min_k import MinK
    from .min_length import MinLength
    from .min_new_tokens import MinNewTokens
    from .min_p import MinP
    from .no_repeat_ngram import NoRepeatNgram
    from .p_less import PLess
    from .prefix_function import PrefixFunction
    from .presence_penalty import PresencePenalty
    from .remove_invalid import RemoveInvalid
    from .renormalise import Renormalise
    from .repetition_penalty import RepetitionPenalty
    from .sequence_bias import SequenceBias
    from .suppress_first import SuppressFirst
    from .suppress_tokens import SuppressTokens
    from .synthid import SynthIDWatermark
    from .synthid_detector import SynthIDDetection, SynthIDDetector
    from .temperature import Temperature
    from .thinking_budget import ThinkingBudget
    from .top_h import TopH
    from .top_k import TopK
    from .top_n_sigma import TopNSigma
    from .top_p import TopP
    from .transformers_export import to_transformers
    from .transformers_import import from_transformers
    from .typical import Typical
    from .vllm_export import to_vllm
    from .xtc import XTC
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".": "presets",
            ".allowed_tokens": "AllowedTokens",
            ".bad_words": "BadWords",
            ".chain": "Chain Composable",
            ".dry": "DRY",
            ".dynamic_temperature": "DynamicTemperature",
            ".encoder_no_repeat_ngram": "EncoderNoRepeatNgram",
            ".encoder_repetition_penalty": "EncoderRepetitionPenalty",
            ".epsilon_cutoff": "EpsilonCutoff",
            ".eta_cutoff": "EtaCutoff",
            ".explanation": "Explanation explain",
            ".exponential_length_decay": "ExponentialLengthDecay",
            ".forced_first": "ForcedFirst",
            ".forced_last": "ForcedLast",
            ".frequency_penalty": "FrequencyPenalty",
            ".generation_config": "Parts from_generation_config to_generation_config",
            ".grammar": "Grammar",
            ".kirchenbauer": "KirchenbauerWatermark",
            ".kirchenbauer_detector": "KirchenbauerDetection KirchenbauerDetector",
            ".llguidance": "json_schema lark regex",
            ".logit_bias": "LogitBias",
            ".matcher": "Language Matcher",
            ".min_k": "MinK",
            ".min_length": "MinLength",
            ".min_new_tokens": "MinNewTokens",
            ".min_p": "MinP",
            ".no_repeat_ngram": "NoRepeatNgram",
            ".p_less": "PLess",
            ".prefix_function": "PrefixFunction",
            ".presence_penalty": "PresencePenalty",
            ".remove_invalid": "RemoveInvalid",
            ".renormalise": "Renormalise",
            ".repetition_penalty": "RepetitionPenalty",
            ".sequence_bias": "SequenceBias",
            ".suppress_first": "SuppressFirst",
            ".suppress_tokens": "SuppressTokens",
            ".synthid": "SynthIDWatermark",
            ".synthid_detector": "SynthIDDetection SynthIDDetector",
            ".temperature": "Temperature",
            ".thinking_budget": "ThinkingBudget",
            ".top_h": "TopH",
            ".top_k": "TopK",
            ".top_n_sigma": "TopNSigma",
            ".top_p": "TopP",
            ".transformers_export": "to_transformers",
            ".transformers_import": "from_transformers",
            ".typical": "Typical",
            ".vllm_export": "to_vllm",
            ".xtc": "XTC",
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
    "ForcedFirst",
    "ForcedLast",
    "FrequencyPenalty",
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
    "Parts",
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
