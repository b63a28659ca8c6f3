"""
Chains of other systems: with their parameter names, order and boundary rules.

Each function returns an ordinary chain. A stage is included if its parameter is given and not one
of that system's off-values, listed for each function. Out-of-range values are refused, also where
that system ignores them silently (a top-p of 1.5). No stage is on by default, whatever that
system's default; windows and the parameters of a stage that is on have that system's defaults.
Every number applies to all rows. For temperature 0 use the sampler ``Greedy()`` and no temperature.
Ties and rounding may differ from that system, or there between machines: see "Not mirrored" of each
function.

>>> from decodekit.processors import presets
>>> presets.transformers(temperature=2.0, top_p=0.9)
Chain(processors=(Temperature(temperature=2.0), TopP(p=0.9, ties='last', min_tokens=1)))
>>> presets.mlx(temp=2.0, top_p=0.9)
Chain(processors=(TopP(p=0.9, ties='last', min_tokens=1), Temperature(temperature=2.0)))
"""

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..decoding.protocols import Processor
from .chain import Chain
from .constraints.allowed_tokens import AllowedTokens
from .constraints.bad_words import BadWords
from .constraints.min_new_tokens import MinNewTokens
from .constraints.no_repeat_ngram import NoRepeatNgram
from .constraints.suppress_first import SuppressFirst
from .constraints.suppress_tokens import SuppressTokens
from .penalties.dry import DRY
from .penalties.frequency_penalty import FrequencyPenalty
from .penalties.logit_bias import LogitBias
from .penalties.presence_penalty import PresencePenalty
from .penalties.repetition_penalty import RepetitionPenalty
from .penalties.sequence_bias import SequenceBias
from .scaling.dynamic_temperature import DynamicTemperature
from .scaling.renormalise import Renormalise
from .scaling.temperature import Temperature
from .truncation.epsilon_cutoff import EpsilonCutoff
from .truncation.eta_cutoff import EtaCutoff
from .truncation.min_p import MinP
from .truncation.top_h import TopH
from .truncation.top_k import TopK
from .truncation.top_n_sigma import TopNSigma
from .truncation.top_p import TopP
from .truncation.typical import Typical
from .truncation.xtc import XTC

N = TypeVar("N", int, float)


def transformers(
    *,
    sequence_bias: Mapping[int | tuple[int, ...], float] | None = None,
    repetition_penalty: float = 1.0,
    no_repeat_ngram_size: int = 0,
    bad_words_ids: Iterable[Sequence[int]] = (),
    eos_token_id: int | Iterable[int] = (),
    min_new_tokens: int = 0,
    suppress_tokens: Iterable[int] = (),
    begin_suppress_tokens: Iterable[int] = (),
    temperature: float = 1.0,
    top_h: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float | None = None,
    typical_p: float = 1.0,
    epsilon_cutoff: float = 0.0,
    eta_cutoff: float = 0.0,
    renormalize_logits: bool = False,
) -> Chain:
    """
    The chain of ``generate(do_sample=True)`` in Hugging Face transformers 5.24.

    The order of ``GenerationMixin._get_logits_processor``: biases, penalties and constraints,
    then temperature, top-h, top-k, top-p, min-p, typical, epsilon, eta, then normalisation.
    Top-k keeps all ties with the k-th; top-p drops the lowest tokens with a total of at most
    1 - *top_p*; penalties include the prompt. With ``do_sample=False`` the chain there ends before
    the temperature. ``top_k`` defaults to 50 there.

    Off are a *temperature*, *repetition_penalty*, *top_p* or *typical_p* of 1, a *top_k*,
    *no_repeat_ngram_size* or *min_new_tokens* of 0, an *epsilon_cutoff* or *eta_cutoff* of 0 or
    1, and a *top_h* or *min_p* of None.

    Not mirrored: in some versions its repetition penalty and n-grams include padding tokens; its
    top-p breaks ties by an unstable sort. Omitted are the minimum length, encoder penalties, forced
    last token, removal of invalid values, length decay and watermarks, which
    :func:`~decodekit.processors.from_generation_config` supports for a whole configuration.
    """
    eos: tuple[int, ...] = (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id)
    return _chain(
        sequence_bias and SequenceBias(sequence_bias),
        _is_on("repetition_penalty", repetition_penalty, 1.0) and RepetitionPenalty(repetition_penalty),
        _is_on("no_repeat_ngram_size", no_repeat_ngram_size, 0) and NoRepeatNgram(no_repeat_ngram_size),
        (words := list(bad_words_ids)) and BadWords(words, eos),
        _is_on("min_new_tokens", min_new_tokens, 0) and MinNewTokens(min_new_tokens, eos),
        (forbidden := list(suppress_tokens)) and SuppressTokens(forbidden),
        (first := list(begin_suppress_tokens)) and SuppressFirst(first),
        _is_on("temperature", temperature, 1.0) and Temperature(temperature),
        top_h is not None and _is_on("top_h", top_h) and TopH(top_h),
        _is_on("top_k", top_k, 0) and TopK(top_k),
        _is_on("top_p", top_p, 1.0) and TopP(top_p),
        min_p is not None and _is_on("min_p", min_p) and MinP(min_p),
        _is_on("typical_p", typical_p, 1.0) and Typical(typical_p),
        _is_on("epsilon_cutoff", epsilon_cutoff, 0.0, 1.0) and EpsilonCutoff(epsilon_cutoff),
        _is_on("eta_cutoff", eta_cutoff, 0.0, 1.0) and EtaCutoff(eta_cutoff),
        renormalize_logits and Renormalise(),
    )


def vllm(
    *,
    allowed_token_ids: Iterable[int] | None = None,
    bad_words: Iterable[Sequence[int]] = (),
    stop_token_ids: int | Iterable[int] = (),
    min_tokens: int = 0,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Chain:
    """
    The chain of vLLM's V1 engine, in the order of ``vllm/v1/sample/sampler.py``.

    Allowed tokens, bad words, min tokens, bias, penalties, temperature, min-p, top-k, top-p. The
    repetition penalty includes the prompt; the other two penalties and bad words do not. Top-k keeps all
    ties with the k-th; top-p drops the lowest tokens with a total of at most 1 - *top_p*. Temperatures
    below 0.01 are raised to it.

    Off are a *temperature*, *repetition_penalty* or *top_p* of 1, a *top_k* of 0 or -1, and 0 of
    the other numbers.

    *bad_words* are token ids here, for each word with and without a leading space; *stop_token_ids*
    are the tokens that *min_tokens* forbids, the end of sequence included.

    Not mirrored: its top-p breaks ties by an unstable sort, or by its backend's rule (FlashInfer
    keeps both).
    """
    # A temperature of 0 is not raised, so that it is refused below.
    raised = max(temperature, 0.01) if _number("temperature", temperature) > 0 else temperature
    return _chain(
        allowed_token_ids is not None and AllowedTokens(allowed_token_ids),
        (words := list(bad_words)) and BadWords(words, include_prompt=False),
        _is_on("min_tokens", min_tokens, 0) and MinNewTokens(min_tokens, stop_token_ids),
        logit_bias and LogitBias(logit_bias),
        _is_on("repetition_penalty", repetition_penalty, 1.0) and RepetitionPenalty(repetition_penalty),
        _is_on("frequency_penalty", frequency_penalty, 0.0) and FrequencyPenalty(frequency_penalty),
        _is_on("presence_penalty", presence_penalty, 0.0) and PresencePenalty(presence_penalty),
        temperature != 1.0 and Temperature(raised),
        _is_on("min_p", min_p, 0.0) and MinP(min_p),
        _is_on("top_k", top_k, 0, -1) and TopK(top_k),
        _is_on("top_p", top_p, 1.0) and TopP(top_p),
    )


def llama_cpp(
    *,
    logit_bias: Mapping[int, float] | None = None,
    penalty_last_n: int = 64,
    penalty_repeat: float = 1.0,
    penalty_freq: float = 0.0,
    penalty_present: float = 0.0,
    dry_multiplier: float = 0.0,
    dry_base: float = 1.75,
    dry_allowed_length: int = 2,
    dry_penalty_last_n: int = -1,
    dry_sequence_breakers: Iterable[int | Sequence[int]] = (),
    top_n_sigma: float = -1.0,
    top_k: int = 0,
    typ_p: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
    temp: float = 1.0,
    dynatemp_range: float = 0.0,
    dynatemp_exponent: float = 1.0,
    min_keep: int = 1,
) -> Chain:
    """
    The default chain of llama.cpp, in the order of ``common/sampling.cpp``.

    Bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature. Penalties
    cover the last *penalty_last_n* tokens, the prompt's included (0 is off, -1 is all). Top-k keeps
    exactly k. Top-p keeps the most likely tokens up to the first that reaches *top_p*, ties by
    ascending id.

    Off are a *temp*, *penalty_repeat*, *typ_p* or *top_p* of 1, a *top_k* or *top_n_sigma* of 0 or
    less, an *xtc_threshold* above 0.5 and up to 1, and 0 of the other numbers. A *typ_p* or
    *top_p* above 1 and negative probabilities are off there and refused here.

    *dry_sequence_breakers* are token ids here, or sequences of them.

    Not mirrored: ties are broken by a partial sort there (here: lower ids, and all equally typical
    tokens); typical keeps one more token there if the mass is met exactly; DRY compares at most 50
    tokens of a match here, and penalises none where *dry_allowed_length* is larger; a breaker of several
    tokens ends earlier matches here too, there only the one that is being continued; XTC has no
    *min_keep* here; the largest entropy of the dynamic temperature is that of the tokens that are left
    here, there that of tokens which top-n-sigma or a bias has masked as well; a *dynatemp_range* of
    *temp* or more, which reaches temperature 0 there, is refused. Omitted is the reasoning budget, which
    follows the bias there: use :class:`~decodekit.processors.ThinkingBudget`.
    """
    seen = _window("penalty_last_n", penalty_last_n)
    dry_seen = _window("dry_penalty_last_n", dry_penalty_last_n)
    return _chain(
        logit_bias and LogitBias(logit_bias),
        _is_on("penalty_repeat", penalty_repeat, 1.0)
        and seen != 0
        and RepetitionPenalty(penalty_repeat, window=seen),
        _is_on("penalty_freq", penalty_freq, 0.0)
        and seen != 0
        and FrequencyPenalty(penalty_freq, include_prompt=True, window=seen),
        _is_on("penalty_present", penalty_present, 0.0)
        and seen != 0
        and PresencePenalty(penalty_present, include_prompt=True, window=seen),
        _is_on("dry_multiplier", dry_multiplier, 0.0)
        and dry_seen != 0
        and DRY(
            dry_multiplier,
            _number("dry_base", dry_base),
            _number("dry_allowed_length", dry_allowed_length),
            dry_sequence_breakers,
            window=dry_seen,
        ),
        # Negated comparisons, so that NaN is not off and is refused.
        not _number("top_n_sigma", top_n_sigma) <= 0.0 and TopNSigma(top_n_sigma),
        not _number("top_k", top_k) <= 0 and TopK(top_k, ties="first"),
        _is_on("typ_p", typ_p, 1.0) and Typical(typ_p, min_keep),
        _is_on("top_p", top_p, 1.0) and TopP(top_p, ties="first", min_tokens=min_keep),
        _is_on("min_p", min_p, 0.0) and MinP(min_p, min_keep),
        _is_on("xtc_probability", xtc_probability, 0.0)
        and not 0.5 < _number("xtc_threshold", xtc_threshold) <= 1.0
        and XTC(xtc_probability, xtc_threshold),
        _llama_cpp_temperature(temp, dynatemp_range, dynatemp_exponent),
    )


def _window(name: str, last_n: int) -> int | None:
    return None if _number(name, last_n) == -1 else last_n


def _llama_cpp_temperature(temp: float, spread: float, exponent: float) -> Processor | None:
    on = _is_on("temp", temp, 1.0)
    if not _is_on("dynatemp_range", spread, 0.0):
        return Temperature(temp) if on else None
    if not 0.0 < spread < temp:
        raise ValueError(
            f"'dynatemp_range' must be >= 0 (0 is off) and < 'temp', for no temperature is 0: "
            f"got {spread!r} for {temp!r}"
        )
    return DynamicTemperature(temp - spread, temp + spread, _number("dynatemp_exponent", exponent))


def mlx(
    *,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float | None = None,
    repetition_context_size: int = 20,
    presence_penalty: float | None = None,
    presence_context_size: int = 20,
    frequency_penalty: float | None = None,
    frequency_context_size: int = 20,
    temp: float = 1.0,
    top_p: float = 0.0,
    min_p: float = 0.0,
    min_tokens_to_keep: int = 1,
    top_k: int = 0,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
    xtc_special_tokens: Iterable[int] = (),
) -> Chain:
    """
    The chain of mlx-lm, in the order of ``make_logits_processors`` and ``make_sampler``.

    Bias, repetition, presence and frequency penalty, top-p, min-p, XTC, top-k, temperature. By default,
    penalties cover the last 20 tokens, the prompt's included; 0 is all of them. Top-p drops the lowest
    tokens with a total of at most 1 - *top_p*; *min_tokens_to_keep* applies to min-p; top-k keeps
    exactly k.

    Off are a penalty of 0 or None, a *top_p* of 0 or 1, a *temp* of 1, and a *min_p*, *top_k* or
    *xtc_probability* of 0.

    Not mirrored: ``generate_step`` there leaves all but the last token of the prompt out of the
    penalties' window (its batch generator counts them, as here). Top-k breaks ties by a partial sort
    there (here: lower ids). XTC there draws once for all rows of a batch, does not count a token exactly
    at the threshold, and keeps the special tokens one by one (here no token is dropped if a special one
    would be).
    """
    return _chain(
        logit_bias and LogitBias(logit_bias),
        repetition_penalty is not None
        and _is_on("repetition_penalty", repetition_penalty, 0.0)
        and RepetitionPenalty(
            repetition_penalty, window=_mlx_window("repetition_context_size", repetition_context_size)
        ),
        presence_penalty is not None
        and _is_on("presence_penalty", presence_penalty, 0.0)
        and PresencePenalty(
            presence_penalty,
            include_prompt=True,
            window=_mlx_window("presence_context_size", presence_context_size),
        ),
        frequency_penalty is not None
        and _is_on("frequency_penalty", frequency_penalty, 0.0)
        and FrequencyPenalty(
            frequency_penalty,
            include_prompt=True,
            window=_mlx_window("frequency_context_size", frequency_context_size),
        ),
        _is_on("top_p", top_p, 0.0, 1.0) and TopP(top_p),
        _is_on("min_p", min_p, 0.0) and MinP(min_p, min_tokens_to_keep),
        _is_on("xtc_probability", xtc_probability, 0.0)
        and XTC(xtc_probability, _number("xtc_threshold", xtc_threshold), keep=xtc_special_tokens),
        _is_on("top_k", top_k, 0) and TopK(top_k, ties="first"),
        _is_on("temp", temp, 1.0) and Temperature(temp),
    )


def _mlx_window(name: str, size: int) -> int | None:
    # There ``tokens[-size:]``, which is everything for 0.
    return _number(name, size) or None


def _number(name: str, value: N) -> N:
    """Return *value* if it is a single number, otherwise raise."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"'{name}' must be one number: got {value!r}, a {type(value).__name__}")
    return value


def _is_on(name: str, value: float, *off: float) -> bool:
    """Whether the number *value* is not one of the system's off-values."""
    return _number(name, value) not in off


def _chain(*stages: Any) -> Chain:
    """Chain of the *stages* that are on; those that are off are falsy."""
    return Chain(stage for stage in stages if stage)
