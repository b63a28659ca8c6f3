"""
Tables of the fields of ``transformers.GenerationConfig``.

Every field is in exactly one table: it configures a stage of the chain (``STAGES``), the
sampler or the stop condition (``SAMPLER_AND_STOP``), has no effect on tokens (``NO_EFFECT``),
is refused unless off (``REFUSED``), or describes the configuration itself (``METADATA``).
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ...decoding.protocols import Processor
from ..constraints.bad_words import BadWords
from ..constraints.encoder_no_repeat_ngram import EncoderNoRepeatNgram
from ..constraints.forced_last_token import ForcedLastToken
from ..constraints.min_length import MinLength
from ..constraints.min_new_tokens import MinNewTokens
from ..constraints.no_repeat_ngram import NoRepeatNgram
from ..constraints.suppress_first import SuppressFirst
from ..constraints.suppress_tokens import SuppressTokens
from ..parameter import options_of
from ..penalties.encoder_repetition_penalty import EncoderRepetitionPenalty
from ..penalties.exponential_length_decay import ExponentialLengthDecay
from ..penalties.repetition_penalty import RepetitionPenalty
from ..penalties.sequence_bias import SequenceBias
from ..scaling.remove_invalid import RemoveInvalid
from ..scaling.renormalise import Renormalise
from ..scaling.temperature import Temperature
from ..truncation.epsilon_cutoff import EpsilonCutoff
from ..truncation.eta_cutoff import EtaCutoff
from ..truncation.min_p import MinP
from ..truncation.top_h import TopH
from ..truncation.top_k import TopK
from ..truncation.top_p import TopP
from ..truncation.typical import Typical
from ..watermark.kirchenbauer import KirchenbauerWatermark
from ..watermark.synthid import SynthIDWatermark


@attrs.frozen(eq=False)
class OtherFields:
    """Other fields that a stage may depend on."""

    eos: tuple[int, ...]
    limit: Mapping[str, int]
    """``max_new_tokens`` or ``max_length``."""


def _always(value: Any) -> bool:
    return True


@attrs.frozen(eq=False)
class StageField:
    """A field that configures a processor."""

    field: str
    kinds: tuple[type, ...]
    make: Callable[[Any, OtherFields], Processor]
    """Makes the processor from the field's value."""

    value: Callable[[Any], Any]
    """Gives the field's value from the processor."""

    is_on: Callable[[Any], bool] = _always
    """Whether a value that is not None enables the stage."""

    only_sampling: bool = False
    """Whether the stage applies with ``do_sample`` only."""


def _simple(field: str, kind: Any, option: str, is_on: Callable[[Any], bool] = _always) -> StageField:
    """A stage with the field's value as its only parameter."""
    return StageField(
        field, (kind,), lambda value, rest: kind(value), lambda part: options_of(part)[option], is_on
    )


def _ids(field: str, kind: Any) -> StageField:
    """A stage with token ids as its only parameter."""
    return StageField(field, (kind,), lambda value, rest: kind(value), lambda processor: list(processor.ids))


def _min_tokens(field: str, kind: Any) -> StageField:
    """A stage that forbids the end of sequence up to a length."""
    return StageField(field, (kind,), lambda n, rest: kind(n, rest.eos), lambda part: part.n, _above_0)


def _filter(field: str, kind: Any, option: str, is_on: Callable[[Any], bool] = _always) -> StageField:
    """A simple stage that applies when sampling only."""
    return attrs.evolve(_simple(field, kind, option, is_on), only_sampling=True)


def _not_1(value: float) -> bool:
    return value != 1.0


def _below_1(value: float) -> bool:
    return value < 1.0


def _above_0(value: float) -> bool:
    return value > 0


def _is_true(value: Any) -> bool:
    return value is True


def _inside(value: float) -> bool:
    return 0.0 < value < 1.0


def _biases(value: Any) -> dict[int | tuple[int, ...], float]:
    """Biases from a mapping or from pairs, the JSON form."""
    pairs = value.items() if isinstance(value, Mapping) else value
    return {tuple(ids): float(bias) for ids, bias in pairs}


def _decay(value: Any, rest: OtherFields) -> ExponentialLengthDecay:
    if not rest.eos:
        raise ValueError("'exponential_decay_length_penalty' needs an 'eos_token_id' to lift: got None")
    start, factor = value
    return ExponentialLengthDecay(start, factor, rest.eos)


_KIRCHENBAUER = ("greenlist_ratio", "bias", "hashing_key", "seeding_scheme", "context_width")
_SYNTHID = (
    "ngram_len", "keys", "context_history_size", "sampling_table_seed", "sampling_table_size",
    "skip_first_ngram_calls",
)  # fmt: skip


def _watermark(value: Any, rest: OtherFields) -> Processor:
    if hasattr(value, "greenlist_ratio"):
        return KirchenbauerWatermark(**{name: getattr(value, name) for name in _KIRCHENBAUER})
    if hasattr(value, "ngram_len") and not value.debug_mode:
        return SynthIDWatermark(**{name: getattr(value, name) for name in _SYNTHID})
    raise ValueError(
        "'watermarking_config' must be a WatermarkingConfig, or a SynthIDTextWatermarkingConfig "
        f"without debug_mode: got {value!r}"
    )


def _config_of(processor: Any) -> Any:
    from transformers import SynthIDTextWatermarkingConfig, WatermarkingConfig

    options = options_of(processor)
    if isinstance(processor, KirchenbauerWatermark):
        return WatermarkingConfig(**{name: options[name] for name in _KIRCHENBAUER})
    return SynthIDTextWatermarkingConfig(**options | {"keys": list(processor.keys)})


STAGES = (
    StageField(
        "sequence_bias",
        (SequenceBias,),
        lambda value, rest: SequenceBias(_biases(value)),
        lambda processor: [[list(ids), bias] for ids, bias in processor.biases.items()],
    ),
    _simple("encoder_repetition_penalty", EncoderRepetitionPenalty, "penalty", _not_1),
    _simple("repetition_penalty", RepetitionPenalty, "penalty", _not_1),
    _simple("no_repeat_ngram_size", NoRepeatNgram, "n", _above_0),
    _simple("encoder_no_repeat_ngram_size", EncoderNoRepeatNgram, "n", _above_0),
    StageField(
        "bad_words_ids",
        (BadWords,),
        lambda value, rest: BadWords(value, rest.eos),
        lambda processor: [list(word) for word in processor.words],
    ),
    _min_tokens("min_length", MinLength),
    _min_tokens("min_new_tokens", MinNewTokens),
    StageField(
        "forced_eos_token_id",
        (ForcedLastToken,),
        lambda value, rest: ForcedLastToken(value, logit=0.0, **rest.limit),
        lambda processor: list(processor.tokens),
    ),
    StageField(
        "remove_invalid_values",
        (RemoveInvalid,),
        lambda value, rest: RemoveInvalid(nan=0.0),
        lambda processor: True,
        _is_true,
    ),
    StageField(
        "exponential_decay_length_penalty",
        (ExponentialLengthDecay,),
        _decay,
        lambda processor: (processor.start, processor.factor),
    ),
    _ids("suppress_tokens", SuppressTokens),
    _ids("begin_suppress_tokens", SuppressFirst),
    _filter("temperature", Temperature, "temperature", _not_1),
    _filter("top_h", TopH, "h"),
    _filter("top_k", TopK, "k", lambda k: k != 0),
    _filter("top_p", TopP, "p", _below_1),
    _filter("min_p", MinP, "p"),
    _filter("typical_p", Typical, "mass", _below_1),
    _filter("epsilon_cutoff", EpsilonCutoff, "epsilon", _inside),
    _filter("eta_cutoff", EtaCutoff, "epsilon", _inside),
    StageField("watermarking_config", (KirchenbauerWatermark, SynthIDWatermark), _watermark, _config_of),
    StageField(
        "renormalize_logits",
        (Renormalise,),
        lambda value, rest: Renormalise(),
        lambda processor: True,
        _is_true,
    ),
)
"""In the order of ``GenerationMixin._get_logits_processor`` of transformers 5.24."""

SAMPLER_AND_STOP = ("do_sample", "eos_token_id", "max_length", "max_new_tokens", "max_time", "stop_strings")

_BEAMS = "it is about beams; BeamSearch takes it"
_CACHE = "a decoder keeps its own cache"
_OUTPUT = "it is about what is returned besides the tokens"
_SPECULATION = "how a draft runs ahead changes no token; a generator takes a drafter and num_draft_tokens"
_RUNNING = "it is about how a model runs"

NO_EFFECT = {
    "early_stopping": _BEAMS,
    "length_penalty": _BEAMS,
    "low_memory": _BEAMS,
    "use_cache": _CACHE,
    "cache_implementation": _CACHE,
    "cache_config": _CACHE,
    "max_cache_len": _CACHE,
    "return_legacy_cache": _CACHE,
    "output_attentions": _OUTPUT,
    "output_hidden_states": _OUTPUT,
    "output_scores": _OUTPUT,
    "output_logits": _OUTPUT,
    "return_dict_in_generate": _OUTPUT,
    "pad_token_id": "rows are not padded",
    "bos_token_id": "it begins a text that has no prompt; a generator takes it as start_of_sequence",
    "decoder_start_token_id": "it begins an encoder-decoder's text, and a prompt has tokens",
    "num_assistant_tokens": _SPECULATION,
    "num_assistant_tokens_schedule": _SPECULATION,
    "assistant_confidence_threshold": "where a draft ends changes no token; ConfidenceLength takes it, as a "
    "draft model's num_draft_tokens",
    "prompt_lookup_num_tokens": _SPECULATION,
    "max_matching_ngram_size": _SPECULATION,
    "assistant_early_exit": _SPECULATION,
    "assistant_lookbehind": _SPECULATION,
    "target_lookbehind": _SPECULATION,
    "speculation_type": _SPECULATION,
    "use_mtp": _SPECULATION,
    "compile_config": _RUNNING,
    "disable_compile": _RUNNING,
    "continuous_batching_config": _RUNNING,
    "prefill_chunk_size": _RUNNING,
}
"""Fields without effect on tokens, with the reason."""

_GROUP_BEAMS = (
    "there are no groups of beams; for texts that differ, take several samples of a prompt, each on a random "
    "stream of its own: generator(prompt, num_samples=n)"
)
_CONSTRAINED_BEAMS = (
    "there are no constrained beams; Grammar, with a regex or a lark grammar, allows only texts with the "
    "given words, greedily or sampled"
)

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "num_beam_groups": ((None, 1), _GROUP_BEAMS),
    "diversity_penalty": ((None, 0), _GROUP_BEAMS),
    "constraints": ((None,), _CONSTRAINED_BEAMS),
    "force_words_ids": ((None,), _CONSTRAINED_BEAMS),
    "num_beams": ((None, 1), "a generator has no beams; BeamSearch(decoder, beams=n) searches"),
    "num_return_sequences": (
        (None, 1),
        "a call takes it: generator(prompts, num_samples=n), each sample on a random stream of its own",
    ),
    "penalty_alpha": (
        (None, 0),
        "contrastive search compares hidden states, which a compiled decoder does not return; against "
        "repetition there are RepetitionPenalty, NoRepeatNgram and DRY",
    ),
    "dola_layers": (
        (None,),
        "DoLa chooses a layer anew for each token, by hidden states that a compiled decoder does not return; "
        "one fixed layer is a contrast of the decoder with its own early exit: "
        "Combined([target, target.early_exit(n)], ...)",
    ),
    "guidance_scale": ((None, 1), "the decoder takes it: Guided(decoder, scale) is one under guidance"),
    "token_healing": (
        (None, False),
        "it rewrites the prompt; heal_last_tokens(generator, texts) does, by the same rule, and "
        "TokenHealing(generator, ForcedPrefix) is strict",
    ),
    "forced_bos_token_id": (
        (None,),
        "it acts where one token precedes, which is an encoder-decoder's start; ForcedFirstToken forces the "
        "first new token after any prompt",
    ),
    "generation_kwargs": ((None, {}), "they are for a model's own generate"),
    "is_assistant": ((None, False), "it ends rows by the draft's own confidence"),
    "assistant_ensemble_weight": ((None,), "it lets the draft change the text"),
}
"""
Unsupported fields, with their off-values and the reason, and what to use instead.

Of several that are set, the first in this order is named: the kinds of beams before beams.
"""

METADATA = (
    "transformers_version",
    "config_name",
    "_from_model_config",
    "_original_object_hash",
    "_commit_hash",
)
"""Fields that do not concern generation."""
