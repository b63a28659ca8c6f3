"""All sequences and scores of transformers' beam search, over random settings."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding import BeamGeneration, BeamSearch, Decoder, EndOfSequence, MaxNewTokens
from decodekit.decoding.strategies.beams.beam import Beam
from decodekit.decoding.strategies.beams.best_beams import BestBeams
from decodekit.neuron_backend import StaticDecoder
from decodekit.processors import (
    Chain,
    LogitBias,
    MinNewTokens,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    to_transformers,
)

ROWS, VOCAB, PAD = 12, 61, 60
CLOSE = 1e-4
"""Scores may differ by so much; where a search decided by less, either choice is right."""

PER_BATCH, BATCHES = 40, 30

EARLY: tuple[bool | str, ...] = (False, True, "never")


@attrs.frozen(kw_only=True)
class Setting:
    """One call of both."""

    prompts: list[list[int]]
    ends: list[int]
    beams: int
    new: int
    penalty: float
    early: bool | str
    chain: Chain
    native: dict[str, Any] | None
    """The same chain by transformers' own names; None: it is wrapped."""


def setting(rng: random.Random) -> Setting:
    """A random one; end tokens are made likely."""
    beams, prompts = rng.choice([(2, 1), (2, 3), (3, 1), (3, 4), (4, 1), (4, 3), (6, 2), (5, 1)])
    ends = rng.sample(range(1, 50), rng.randint(1, 3))
    biases = {end: rng.uniform(1.0, 6.0) for end in ends}
    parts: list[Any] = [LogitBias(biases)]
    native: dict[str, Any] | None = {"sequence_bias": [[[end], bias] for end, bias in biases.items()]}
    known: list[tuple[Any, dict[str, Any] | None]] = [
        (RepetitionPenalty(1.3), {"repetition_penalty": 1.3}),
        (NoRepeatNgram(2), {"no_repeat_ngram_size": 2}),
        (MinNewTokens(3, ends), {"min_new_tokens": 3}),
        (SuppressTokens([5, 6, 7]), {"suppress_tokens": [5, 6, 7]}),
        (Temperature(0.7), None),
        (PresencePenalty(0.5), None),
        (TopK(40), None),
    ]
    if prompts > 1 or rng.random() < 0.5:
        native = None
        parts += [part for part, _ in rng.sample(known, rng.randint(0, 3))]
    elif rng.random() < 0.8:
        # Of several, transformers chooses the order.
        part, names = rng.choice(known[:4])
        # Biases come first there.
        native, parts = {**(native or {}), **(names or {})}, [*parts, part]
    return Setting(
        prompts=[[rng.randrange(1, PAD) for _ in range(rng.randint(1, 12))] for _ in range(prompts)],
        ends=ends,
        beams=beams,
        # transformers warns of a minimum above the limit.
        new=rng.randint(3 if native and "min_new_tokens" in native else 1, 12),
        penalty=rng.choice([1.0, 1.0, 0.0, 0.5, 2.0, -1.0]),
        early=EARLY[rng.randrange(3)],
        chain=Chain(parts),
        native=native,
    )


def theirs(model: PreTrainedModel, one: Setting) -> tuple[list[list[int]], list[float]]:
    """The new tokens, with padding behind them, and the scores of all beams."""
    longest = max(map(len, one.prompts))
    padded = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in one.prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in one.prompts])
    options: dict[str, Any] = dict(one.native or {})
    if one.native is None:
        wrapped = to_transformers(
            one.chain, prompt_length=longest, attention_mask=mask.repeat_interleave(one.beams, dim=0)
        )
        options["logits_processor"] = [wrapped]
    generate: Any = model.generate
    output = generate(
        input_ids=padded,
        attention_mask=mask,
        do_sample=False,
        num_beams=one.beams,
        num_return_sequences=one.beams,
        max_new_tokens=one.new,
        eos_token_id=one.ends,
        pad_token_id=PAD,
        length_penalty=one.penalty,
        early_stopping=one.early,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    return output.sequences[:, longest:].tolist(), output.sequences_scores.tolist()


def ours(decoder: Decoder, one: Setting) -> BeamGeneration:
    """All beams."""
    search = BeamSearch(
        decoder,
        beams=one.beams,
        num_return=one.beams,
        processors=one.chain,
        stop=EndOfSequence(one.ends) | MaxNewTokens(one.new),
        length_penalty=one.penalty,
        early_stopping=one.early,
    )
    return search(one.prompts)


@pytest.fixture
def smallest_gap(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The smallest difference by which one of the searches decided, as the only element."""
    found = [np.inf]
    best = BestBeams._best_children

    def best_children(search: BestBeams, log_probs: Tensor) -> list[tuple[int, Beam]]:
        children = best(search, log_probs)
        totals = [child.total for _, child in children]
        found[0] = min([found[0], *(a - b for a, b in itertools.pairwise(totals))])
        return children

    monkeypatch.setattr(BestBeams, "_best_children", best_children)
    return found


@pytest.fixture(scope="module")
def placements(tiny_model: Callable[..., PreTrainedModel]) -> list[StaticDecoder]:
    """A decoder that copies rows, and one that is fed again."""
    model = tiny_model("llama", torch.float64)
    fed_again, copied = (
        StaticDecoder(model, batch_size=ROWS, max_length=64, widths=(1, 5, 16)) for _ in range(2)
    )
    fed_again.copies_rows = False
    return [copied, fed_again]


@pytest.mark.mostly_slow(every=15)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_equals_transformers(
    batch: int,
    tiny_model: Callable[..., PreTrainedModel],
    placements: list[StaticDecoder],
    smallest_gap: list[float],
) -> None:
    """Ids of all beams, and scores to 1e-4, with rows copied and fed again."""
    model, rng, close = tiny_model("llama", torch.float64), random.Random(batch), 0
    for _ in range(PER_BATCH):
        one = setting(rng)
        ids, scores = theirs(model, one)
        for decoder in placements:
            smallest_gap[0] = np.inf
            result = ours(decoder, one)
            padded = [row + [PAD] * (len(ids[0]) - len(row)) for row in result.ids]
            if padded != ids and smallest_gap[0] < CLOSE:
                close += 1
                continue

            assert ids == padded, one
            assert scores == pytest.approx(result.scores, abs=CLOSE, rel=CLOSE), one

    assert close <= PER_BATCH // 10


@pytest.mark.slow
def test_compiled(
    tiny_model: Callable[..., PreTrainedModel], compiled_llama: StaticDecoder, smallest_gap: list[float]
) -> None:
    """The same through compiled programs, whose rows are copied; in float32."""
    model, rng, close = tiny_model("llama"), random.Random(1), 0
    settings = [one for one in (setting(rng) for _ in range(400)) if one.beams == 2]
    for one in settings:
        ids, scores = theirs(model, one)
        smallest_gap[0] = np.inf
        result = ours(compiled_llama, one)
        if smallest_gap[0] < CLOSE:
            close += 1
            continue

        assert ids == [row + [PAD] * (len(ids[0]) - len(row)) for row in result.ids], one
        assert scores == pytest.approx(result.scores, abs=CLOSE, rel=CLOSE), one

    assert close <= len(settings) // 10
