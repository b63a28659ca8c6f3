"""Catalogue entries of penalties."""

import math
from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.processors import (
    DRY,
    EncoderNoRepeatNgram,
    EncoderRepetitionPenalty,
    ExponentialLengthDecay,
    FrequencyPenalty,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
)

from .entry import NONE, Entry, off_or


def presence(penalty: float, prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The penalty by its definition, token by token."""

    def subtract(ids: Tensor, logits: Tensor) -> Tensor:
        generated = ids[0, prompt:].tolist()
        return torch.tensor(
            [[x - penalty * (token in generated) for token, x in enumerate(logits[0].tolist())]],
            dtype=logits.dtype,
        )

    return subtract


def frequency(penalty: float, prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The penalty by its definition, token by token."""

    def subtract(ids: Tensor, logits: Tensor) -> Tensor:
        generated = ids[0, prompt:].tolist()
        return torch.tensor(
            [[x - penalty * generated.count(token) for token, x in enumerate(logits[0].tolist())]],
            dtype=logits.dtype,
        )

    return subtract


Reference = Callable[[Tensor, Tensor], Tensor]


def last(n: int, reference: Reference) -> Reference:
    """The reference on the last *n* tokens alone."""
    return lambda ids, logits: reference(ids[:, max(ids.shape[1] - n, 0) :], logits)


def on_log_probabilities(reference: Reference) -> Reference:
    """The reference on log-probabilities, as under beam search, and back among the logits."""

    def penalise(ids: Tensor, logits: Tensor) -> Tensor:
        normaliser = logits.logsumexp(dim=-1, keepdim=True)
        if normaliser == -torch.inf:
            return logits
        return reference(ids, logits - normaliser) + normaliser

    return penalise


def of_prompt(make: Callable[[Tensor], Reference], prompt: int) -> Reference:
    """Hugging Face's own, given the prompt as the encoder's input."""

    def penalise(ids: Tensor, logits: Tensor) -> Tensor:
        return make(ids[:, :prompt])(ids, logits) if prompt else logits

    return penalise


def dry(
    multiplier: float,
    prompt: int = 0,
    base: float = 1.75,
    allowed_length: int = 2,
    breakers: tuple[tuple[int, ...], ...] = (),
    max_length: int = 50,
) -> Reference:
    """The penalty by its definition, slot by slot and token by token."""

    def subtract(ids: Tensor, logits: Tensor) -> Tensor:
        said = ids[0].tolist()
        broken = {
            slot
            for slot in range(len(said))
            for breaker in breakers
            if tuple(said[: slot + 1][-len(breaker) :]) == breaker
        }
        longest: dict[int, int] = {}
        for slot in range(prompt, len(said)):
            length = 0
            while (
                length < max_length
                and slot - length > prompt
                and said[slot - 1 - length] == said[-1 - length]
                and not {slot - 1 - length, len(said) - 1 - length} & broken
            ):
                length += 1
            longest[said[slot]] = max(longest.get(said[slot], 0), length)
        result = logits.clone()
        for token, length in longest.items():
            if length >= allowed_length and (token,) not in breakers:
                result[0, token] -= multiplier * base ** (length - allowed_length)
        return result

    return subtract


def of_ids_from(
    start: int, reference: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """A reference that is shown a part of the ids alone."""
    return lambda ids, logits: reference(ids[:, start:], logits)


def faded(
    window: int,
    fade: int,
    together: Callable[[list[float]], float],
    formula: Callable[[float, float], float],
) -> Callable[[Tensor, Tensor], Tensor]:
    """A penalty by a token's share, which is full in the window and falls beyond it."""

    def penalise(ids: Tensor, logits: Tensor) -> Tensor:
        row = logits[0].tolist()
        shares: dict[int, list[float]] = {}
        for distance, token in enumerate(reversed(ids[0].tolist()), start=1):
            share = 1.0 if distance <= window else max(0.0, 1 - (distance - window) / max(fade, 1))
            shares.setdefault(token, []).append(share)
        for token, found in shares.items():
            if token < len(row) and row[token] > -math.inf and together(found) > 0:
                row[token] = formula(row[token], together(found))
        return torch.tensor([row], dtype=logits.dtype)

    return penalise


def theta(x: float, penalty: float) -> float:
    """The repetition penalty of one logit."""
    return x * penalty if x < 0 else x / penalty


ENTRIES = {
    "RepetitionPenalty over a window": Entry(
        lambda window: RepetitionPenalty(1.7, window=window),
        st.integers(0, 6),
        0,
        2,
        lambda window, prompt: last(window, hf.RepetitionPenaltyLogitsProcessor(1.7)),
    ),
    "RepetitionPenalty that fades": Entry(
        lambda fade: RepetitionPenalty(1.7, window=2, fade=fade),
        st.integers(0, 6),
        NONE,
        3,
        lambda fade, prompt: faded(2, fade, max, lambda x, share: x * (1 - share) + theta(x, 1.7) * share),
        atol=1e-5,
    ),
    "PresencePenalty that fades": Entry(
        lambda fade: PresencePenalty(0.7, include_prompt=True, window=2, fade=fade),
        st.integers(0, 6),
        NONE,
        3,
        lambda fade, prompt: faded(2, fade, max, lambda x, share: x - 0.7 * share),
        atol=1e-5,
    ),
    "FrequencyPenalty that fades": Entry(
        lambda fade: FrequencyPenalty(0.7, include_prompt=True, window=2, fade=fade),
        st.integers(0, 6),
        NONE,
        3,
        lambda fade, prompt: faded(2, fade, sum, lambda x, share: x - 0.7 * share),
        atol=1e-5,
    ),
    "RepetitionPenalty of log-probabilities": Entry(
        lambda value: RepetitionPenalty(value, shift_safe=True),
        st.floats(0.2, 3.0),
        1.0,
        0.5,
        lambda value, prompt: on_log_probabilities(hf.RepetitionPenaltyLogitsProcessor(value)),
        atol=1e-4,
    ),
    "PresencePenalty over a window": Entry(
        lambda window: PresencePenalty(0.7, include_prompt=True, window=window),
        st.integers(0, 6),
        0,
        2,
        lambda window, prompt: last(window, presence(0.7, 0)),
        atol=1e-6,
    ),
    "FrequencyPenalty over a window": Entry(
        lambda window: FrequencyPenalty(0.7, include_prompt=True, window=window),
        st.integers(0, 6),
        0,
        2,
        lambda window, prompt: last(window, frequency(0.7, 0)),
        atol=1e-5,
    ),
    "EncoderRepetitionPenalty": Entry(
        EncoderRepetitionPenalty,
        st.floats(0.2, 3.0),
        1.0,
        0.5,
        lambda value, prompt: of_prompt(
            lambda ids: hf.EncoderRepetitionPenaltyLogitsProcessor(value, ids), prompt
        ),
    ),
    "EncoderRepetitionPenalty of log-probabilities": Entry(
        lambda value: EncoderRepetitionPenalty(value, shift_safe=True),
        st.floats(0.2, 3.0),
        1.0,
        0.5,
        lambda value, prompt: of_prompt(
            lambda ids: on_log_probabilities(hf.EncoderRepetitionPenaltyLogitsProcessor(value, ids)), prompt
        ),
        atol=1e-4,
    ),
    "EncoderNoRepeatNgram": Entry(
        EncoderNoRepeatNgram,
        st.integers(0, 5),
        0,
        2,
        lambda value, prompt: (
            of_prompt(lambda ids: hf.EncoderNoRepeatNGramLogitsProcessor(value, ids), prompt)
            if value
            else lambda ids, logits: logits
        ),
        hard=True,
    ),
    "DRY": Entry(
        lambda value: DRY(value, allowed_length=1),
        st.floats(0.0, 2.0),
        0.0,
        0.5,
        lambda value, prompt: dry(value, allowed_length=1),
        atol=1e-3,
    ),
    "DRY with breakers": Entry(
        lambda value: DRY(value, base=2.0, allowed_length=1, breakers=[2, (0, 1)]),
        st.floats(0.0, 2.0),
        0.0,
        0.5,
        lambda value, prompt: dry(value, base=2.0, allowed_length=1, breakers=((2,), (0, 1))),
        atol=1e-3,
    ),
    "DRY without the prompt": Entry(
        lambda value: DRY(value, allowed_length=1, include_prompt=False, max_match=3),
        st.floats(0.0, 2.0),
        0.0,
        0.5,
        lambda value, prompt: dry(value, prompt, allowed_length=1, max_length=3),
        atol=1e-3,
    ),
    "DRY over a window": Entry(
        lambda window: DRY(0.5, allowed_length=1, window=window),
        st.integers(0, 6),
        0,
        4,
        lambda window, prompt: last(window, dry(0.5, allowed_length=1)),
        atol=1e-3,
    ),
    "ExponentialLengthDecay": Entry(
        lambda factor: ExponentialLengthDecay(2, factor, [3, 1]),
        st.floats(0.5, 1.3),
        1.0,
        1.25,
        lambda factor, prompt: hf.ExponentialDecayLengthPenalty((2, factor), [3, 1], prompt),
        atol=1e-3,
    ),
    "ExponentialLengthDecay of log-probabilities": Entry(
        lambda factor: ExponentialLengthDecay(2, factor, [3, 1], shift_safe=True),
        st.floats(0.5, 1.3),
        1.0,
        1.25,
        lambda factor, prompt: on_log_probabilities(
            hf.ExponentialDecayLengthPenalty((2, factor), [3, 1], prompt)
        ),
        atol=1e-3,
    ),
    "RepetitionPenalty": Entry(
        RepetitionPenalty,
        st.floats(0.2, 3.0),
        1.0,
        0.5,
        lambda value, prompt: hf.RepetitionPenaltyLogitsProcessor(value),
    ),
    "RepetitionPenalty without the prompt": Entry(
        lambda value: RepetitionPenalty(value, include_prompt=False),
        st.floats(0.2, 3.0),
        1.0,
        0.5,
        lambda value, prompt: hf.RepetitionPenaltyLogitsProcessor(value, prompt_ignore_length=prompt),
    ),
    "PresencePenalty": Entry(PresencePenalty, st.floats(-2.0, 2.0), 0.0, 0.5, presence, atol=1e-6),
    "PresencePenalty with the prompt": Entry(
        lambda value: PresencePenalty(value, include_prompt=True),
        st.floats(-2.0, 2.0),
        0.0,
        0.5,
        lambda value, prompt: presence(value, 0),
        atol=1e-6,
    ),
    "FrequencyPenalty": Entry(FrequencyPenalty, st.floats(-2.0, 2.0), 0.0, 0.5, frequency, atol=1e-5),
    "FrequencyPenalty with the prompt": Entry(
        lambda value: FrequencyPenalty(value, include_prompt=True),
        st.floats(-2.0, 2.0),
        0.0,
        0.5,
        lambda value, prompt: frequency(value, 0),
        atol=1e-5,
    ),
    "NoRepeatNgram without the prompt": Entry(
        lambda value: NoRepeatNgram(value, include_prompt=False),
        st.integers(0, 5),
        0,
        2,
        lambda value, prompt: of_ids_from(prompt, off_or(0, hf.NoRepeatNGramLogitsProcessor)(value, 0)),
        hard=True,
    ),
    "NoRepeatNgram over a window": Entry(
        lambda value: NoRepeatNgram(value, window=4),
        st.integers(0, 5),
        0,
        2,
        lambda value, prompt: of_ids_from(-4, off_or(0, hf.NoRepeatNGramLogitsProcessor)(value, 0)),
        hard=True,
    ),
    "NoRepeatNgram": Entry(
        NoRepeatNgram, st.integers(0, 5), 0, 2, off_or(0, hf.NoRepeatNGramLogitsProcessor), hard=True
    ),
}
