"""Every wrapped decoder keeps the decoder contract, whatever its system does in a call."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding import Generator, Greedy, MaxNewTokens, Sample
from decodekit.decoding.cache.slots import Slots
from decodekit.neuron_backend import StaticDecoder
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.testing import check_decoder

from ...histories import history_of_rows
from ...strategies import examples
from .systems import BATCH, LENGTH, SYSTEMS, VERIFYING, Reference

PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60], [7, 7, 30, 2, 2, 11, 50, 1, 5, 5, 42, 9, 13, 33, 21, 4, 4, 60, 0]]
LONG = [list(range(3, 33)), [1, 2], list(range(40, 60))]


@pytest.fixture(scope="module")
def model(tiny_model) -> PreTrainedModel:
    return tiny_model("llama", torch.float64)


@pytest.fixture(scope="module")
def reference(model: PreTrainedModel) -> Reference:
    return Reference(model)


@pytest.fixture(scope="module")
def own(model: PreTrainedModel) -> StaticDecoder:
    """The same model in a StaticDecoder."""
    return StaticDecoder(model, batch_size=BATCH, max_length=LENGTH, widths=(1, 5, 16))


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_contract_is_kept(name: str, model: PreTrainedModel):
    """Every width, ragged rows, padding, stale slots, the last position, and refusals."""
    check_decoder(SYSTEMS[name](model))


@pytest.mark.mostly_slow(every=5)
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("prompts", [PROMPTS, LONG, PROMPTS[:1]], ids=["ragged", "long", "alone"])
def test_texts_are_those_of_a_static_decoder(name, sampler, prompts, model, own):
    """Ragged prompts, of one token, longer than the context encoding, or fewer than the rows."""
    parts = {"sampler": sampler, "stop": MaxNewTokens(12)}

    result = Generator(SYSTEMS[name](model), **parts)(prompts)

    assert Generator(own, **parts)(prompts).ids == result.ids


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("name", VERIFYING)
@pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=5)], ids=["greedy", "sampled"])
def test_speculation_changes_nothing(name, sampler, model, own, tiny_model):
    """With a draft that is often wrong, and with one that is often right, the text is plain decoding's."""
    parts = {"sampler": sampler, "stop": MaxNewTokens(20)}
    expected = Generator(own, **parts)(PROMPTS).ids
    decoder = SYSTEMS[name](model)
    k = decoder.shape.scored_width - 1
    draft = StaticDecoder(
        tiny_model("llama", torch.float64), batch_size=BATCH, max_length=LENGTH, widths=(1, 2, 16)
    )

    copied = SpeculativeGenerator(decoder, DraftModel(draft), num_draft_tokens=k, **parts)(PROMPTS)
    looked_up = SpeculativeGenerator(decoder, PromptLookup(), num_draft_tokens=k, **parts)(PROMPTS)

    assert expected == copied.ids
    assert expected == looked_up.ids
    # The copy drafts right except for rounding: fewer steps than tokens.
    assert copied.statistics.mean_accepted_length > 2


@pytest.mark.parametrize("name", VERIFYING[:2])
def test_it_drafts_as_well(name, model, own):
    """A wrapped decoder as a DraftModel."""
    parts = {"stop": MaxNewTokens(20)}

    result = SpeculativeGenerator(own, DraftModel(SYSTEMS[name](model)), num_draft_tokens=4, **parts)(PROMPTS)

    assert Generator(own, **parts)(PROMPTS).ids == result.ids


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_prompt_joins_a_running_batch(name, model, reference):
    """Rows that start, lag, and restart beside others score as they do alone."""
    decoder = SYSTEMS[name](model)
    slots = Slots.of(decoder)
    texts = [list(PROMPTS[0]), [], []]
    for turn in range(14):
        if turn == 3:
            texts[1] = [60]
        if turn == 5:
            texts[2] = list(PROMPTS[2])
        if turn == 9:
            texts[1] = [60, 4, 4]
        rows = [row for row in range(BATCH) if texts[row] and turn % (row + 2) != 1]
        history = history_of_rows(texts, LENGTH)
        need = torch.tensor([int(row in rows) for row in range(BATCH)])
        logits = slots.feed(history, history.length[:, 0], need).logits
        for row in rows:
            torch.testing.assert_close(
                logits[row, -1 if logits.shape[1] == 1 else 0],
                reference.after(tuple(texts[row])),
                atol=1e-5,
                rtol=1e-5,
            )
            texts[row].append(int(logits[row, 0].argmax()))


# One row's part of a forward: how far it rewinds, and the tokens it is then fed.
PARTS = st.none() | st.tuples(st.integers(0, 8), st.lists(st.integers(0, 4), min_size=1, max_size=20))


@pytest.mark.parametrize("name", SYSTEMS)
@settings(max_examples=examples(25))
@given(forwards=st.lists(st.tuples(*[PARTS] * BATCH, st.integers(0, 9)), min_size=1, max_size=8))
def test_any_order_of_forwards_scores_as_the_stock_model(name, model, reference, forwards):
    """Rows start, continue, rewind and idle independently; every column scores as its prefix does."""
    decoder = SYSTEMS[name](model)
    shape = decoder.shape
    texts: list[list[int]] = [[] for _ in range(BATCH)]
    for *parts, choice in forwards:
        width = shape.widths[choice % len(shape.widths)]
        right = width > shape.scored_width
        ids, start = torch.full((BATCH, width), -1), torch.zeros(BATCH, dtype=torch.int64)
        for row, part in enumerate(parts):
            if part is None:
                continue
            # 8 rewinds to the beginning.
            kept = 0 if part[0] == 8 else max(0, len(texts[row]) - part[0])
            new = part[1][: min(width, LENGTH - kept)]
            if not new:
                continue
            texts[row] = texts[row][:kept] + new
            indent = width - len(new) if right else 0
            ids[row, indent : indent + len(new)] = torch.tensor(new)
            start[row] = kept - indent
        logits = decoder.forward(ids, start)
        _compare(reference, texts, ids, start, logits, right)


def _compare(reference, texts, ids: Tensor, start: Tensor, logits: Tensor, right: bool) -> None:
    for row, column in (ids >= 0).nonzero().tolist():
        position = int(start[row]) + column
        if right and column < ids.shape[1] - 1:
            continue
        expected = reference.after(tuple(texts[row][: position + 1]))
        got = logits[row, 0 if right else column]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("wide", [False, True], ids=["a token", "a prompt"])
def test_feeding_the_same_tokens_again_keeps_those_after_them(name, wide, model, reference):
    """A first token that is fed again must not lose the tokens that its bucket overwrites."""
    decoder = SYSTEMS[name](model)
    text = PROMPTS[2]
    for position, token in enumerate(text):
        decoder.forward(torch.tensor([[token], [token], [-1]]), torch.tensor([position, position, 0]))

    first = decoder.forward(torch.tensor([[text[0]], [-1], [9]]), torch.tensor([0, 0, 0]))[:, 0].clone()
    width = decoder.shape.widths[-1 if wide else 0]
    ids = torch.full((BATCH, width), -1)
    ids[:2, -1] = 3
    last = decoder.forward(ids, torch.full((BATCH,), len(text) + 1 - width))[:, -1]

    torch.testing.assert_close(first[0], reference.after((text[0],)), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(first[2], reference.after((9,)), atol=1e-5, rtol=1e-5)
    for row in range(2):
        torch.testing.assert_close(last[row], reference.after((*text, 3)), atol=1e-5, rtol=1e-5)
