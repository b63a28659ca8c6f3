"""Drift against explicit sums over the vocabulary."""

import math

import numpy as np
import pytest
import torch

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import StaticDecoder, drift
from decodekit.testing import ScriptedDecoder

TEXTS = [list(range(3, 40)), [5, 9], [60, 1, 2, 3, 44, 17, 8, 8, 8, 7, 6, 5]]


def by_definition(reference, quantised, texts):
    """Divergences, agreements and losses of each position, token by token of the vocabulary."""
    divergences, agreed, losses = [], [], ([], [])
    for text in texts:
        with torch.no_grad():
            scores = [model(torch.tensor([text])).logits[0].double() for model in (reference, quantised)]
        for position in range(len(text) - 1):
            p, q = ((each[position].exp() / each[position].exp().sum()).tolist() for each in scores)
            divergences.append(sum(p[i] * (math.log(p[i]) - math.log(q[i])) for i in range(len(p))))
            agreed.append(p.index(max(p)) == q.index(max(q)))
            for each, loss in zip((p, q), losses, strict=True):
                loss.append(-math.log(each[text[position + 1]]))
    return divergences, agreed, losses


@pytest.fixture(scope="module")
def both(tiny_model):
    """A model and a coarser one."""
    model = tiny_model("llama", torch.float64)
    return model, StaticDecoder(model, max_length=64, widths=(5,), weights="int4")


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({"widths": (5,)}, id="chunks"),
        pytest.param({"widths": (1, 16), "scored_width": 1}, id="token by token"),
        pytest.param({"widths": (1, 8), "batch_size": 3}, id="other rows are idle"),
    ],
)
def test_follows_the_definitions(shape, both, tiny_model):
    """For any widths."""
    model, quantised = both
    divergences, agreed, losses = by_definition(model, quantised.step.model, TEXTS)
    made = StaticDecoder(quantised.step.model, max_length=64, **shape)

    found = drift(model, made, TEXTS)

    assert sum(map(len, TEXTS)) - len(TEXTS) == found.tokens == len(divergences)
    assert pytest.approx(sum(divergences) / len(divergences), rel=1e-5) == found.mean_divergence
    assert pytest.approx(max(divergences), rel=1e-5) == found.max_divergence
    assert pytest.approx(sum(agreed) / len(agreed)) == found.agreement
    means = [math.exp(sum(loss) / len(loss)) for loss in losses]
    assert pytest.approx(means, rel=1e-5) == [found.reference_perplexity, found.perplexity]
    assert 0.01 < found.mean_divergence
    assert 0 < found.agreement < 1


def test_of_a_decoder_from_itself_is_none(both):
    """Decoders and models are accepted on both sides."""
    model, quantised = both
    for reference, decoder in ((quantised, quantised), (quantised.step.model, quantised)):
        found = drift(reference, decoder, TEXTS)

        assert 0 <= found.mean_divergence < 1e-9
        assert 1.0 == found.agreement
    assert (
        drift(model, model, TEXTS).reference_perplexity == drift(model, quantised, TEXTS).reference_perplexity
    )


def test_a_generator_does_not_reuse_the_cached_text(both):
    """The cache holds another text than the generator fed."""
    generator = Generator(both[1], stop=MaxNewTokens(20))
    expected = generator([TEXTS[0][:20]]).ids

    drift(both[0], both[1], [[5] * 40])

    assert expected == generator([TEXTS[0][:20]]).ids


def test_of_scripted_distributions():
    """(1/2, 1/2) scored by (3/4, 1/4) costs log(2) - log(3)/2 nats; ties go to the first."""
    even, uneven = (
        ScriptedDecoder(torch.tensor(p).log().expand(8, 2).contiguous(), widths=(1, 4), scored_width=4)
        for p in ([0.5, 0.5], [0.75, 0.25])
    )

    found = drift(even, uneven, [[0, 1, 1]])

    assert pytest.approx(math.log(2) - math.log(3) / 2, rel=1e-5) == found.mean_divergence
    assert (2, 1.0) == (found.tokens, found.agreement)
    assert pytest.approx([2.0, 4.0], rel=1e-5) == [found.reference_perplexity, found.perplexity]
    expected = "KL mean 0.144 max 0.144 nats/token, greedy agreement 100.00%, perplexity 2 -> 4 (2 tokens)"
    assert expected == str(found)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("some text", "'texts' must be lists of token ids: got 'some text'"),
        (7, "'texts' must be lists of token ids: got 7"),
        (["some text"], "'texts' must be lists of token ids, which a tokenizer makes: got 'some text'"),
        ([1, 2, 3], "'texts' must be lists of token ids: got 1 among them"),
        ([[1, 2], [1, 2.5]], r"'texts' must be lists of token ids: got \[1, 2.5\] among them"),
        ([[1, True]], r"'texts' must be lists of token ids: got \[1, True\] among them"),
    ],
)
def test_invalid_texts_are_refused(texts, message, both):
    """Such as strings, which need a tokenizer."""
    with pytest.raises(TypeError, match=message):
        drift(both[0], both[1], texts)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([[1, 2], [1, 61]], "'texts' must be of ids >= 0 and < 61: got 61"),
        ([[1, -1, 2]], "'texts' must be of ids >= 0 and < 61: got -1"),
        ([[1, 2], [5] * 500], "'texts' must be of [0-9]+ ids or fewer each, the positions that fit: got 500"),
    ],
)
def test_ids_that_do_not_fit_are_refused(texts, message, both):
    """Before anything is fed."""
    with pytest.raises(ValueError, match=message):
        drift(both[0], both[1], texts)


def test_texts_may_be_tensors_and_arrays(both):
    """As tokenizers give them."""
    expected = drift(both[0], both[1], [[1, 2, 3], [4, 5]])

    found = drift(both[0], both[1], iter([torch.tensor([1, 2, 3]), np.array([4, 5])]))

    assert expected == found


@pytest.mark.parametrize("texts", [[], [[1]], [[1, 2], []]])
def test_texts_without_a_following_token_are_refused(texts, both):
    """There would be nothing to compare."""
    with pytest.raises(ValueError, match="'texts' must be of two ids or more each: got"):
        drift(both[0], both[1], texts)


def test_another_vocabulary_is_refused(both, tiny_model):
    """Distributions over different vocabularies cannot be compared."""
    other = ScriptedDecoder(torch.zeros(60, 7), widths=(1,), scored_width=1)

    with pytest.raises(ValueError, match="'decoder' must have the reference's vocabulary, 61: got 7"):
        drift(both[0], other, [[1, 2, 3]])
