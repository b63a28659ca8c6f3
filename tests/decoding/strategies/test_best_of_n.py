"""Folds over samples."""

import math
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding import (
    Batched,
    Batcher,
    BestOfN,
    Event,
    Generator,
    Greedy,
    Guided,
    LogLikelihood,
    Logprobs,
    MaxNewTokens,
    MinimumBayesRisk,
    Sample,
    ScoredBy,
    SelfConsistency,
    StopTokens,
)
from decodekit.decoding.strategies.candidates import Choices
from decodekit.decoding.strategies.minimum_bayes_risk import unigram_f1
from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.processors import PrefixFunction, Temperature
from decodekit.speculation import PromptLookup

from .reference import scripted

PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4], [7, 7, 0, 5]]
PARTS: dict[str, Any] = {"sampler": Sample(seed=5), "stop": StopTokens([2]) | MaxNewTokens(9)}


def generator(rows: int = 12, **parts: Any) -> Generator:
    """Of scripted rows."""
    return Generator(scripted(rows), **{**PARTS, **parts})


def sources(parts: Generator) -> list[Any]:
    """The generator, and requests to a batcher with few rows."""
    return [parts, Batched(Batcher(scripted(3)), parts.parts)]


def alone(parts: Generator, row: int, n: int, first: int = 0) -> Any:
    """The sample of that row by itself."""
    return parts(PROMPTS[row // n], random_streams=[first + row], logprobs=Logprobs())


def test_rows_are_numbered_through_the_call() -> None:
    """A function of it gets sample *s* of prompt *p* as row ``p * n + s``, from a batcher too."""
    parts = generator(processors=PrefixFunction(lambda row, ids: [row % 8, (row + 3) % 8]))
    one, other = (
        BestOfN(source, 4, by=LogLikelihood())(PROMPTS, random_stream=30) for source in sources(parts)
    )

    for chosen, again in zip(one.choices, other.choices, strict=True):
        assert [candidate.ids for candidate in chosen.candidates] == [
            candidate.ids for candidate in again.candidates
        ]


@pytest.mark.parametrize("drafter", [None, PromptLookup()])
@pytest.mark.parametrize("kind", [0, 1], ids=["generator", "batcher"])
def test_the_samples_are_those_of_their_random_streams(kind: int, drafter: Any) -> None:
    """Sample *s* of prompt *p* is what stream ``first + p * n + s`` gives alone, whatever runs beside it."""
    parts = generator(drafter=drafter)
    result = BestOfN(sources(parts)[kind], 4, by=LogLikelihood())(PROMPTS, random_stream=30)

    assert 3 == len(result.choices)
    for row in range(12):
        one, candidate = alone(parts, row, 4, 30), result.choices[row // 4].candidates[row % 4]

        assert one.ids == [candidate.ids]
        assert one.finishes == [candidate.finish]
        assert PROMPTS[row // 4] == candidate.prompt
        assert one.logprobs == [candidate.logprobs]
    assert 5 == result.seed


@pytest.mark.parametrize("kind", [0, 1], ids=["generator", "batcher"])
def test_each_fold_by_brute_force(kind: int) -> None:
    """Best of n by likelihood and by a function, majority, and minimum Bayes risk."""
    parts = generator()
    rows = [alone(parts, row, 4) for row in range(12)]
    ids = [[one.ids[0] for one in rows[first : first + 4]] for first in (0, 4, 8)]
    means = [sum(token.logprob for token in one.logprobs[0]) / len(one.ids[0]) for one in rows]
    source = sources(parts)[kind]

    likeliest = BestOfN(source, 4)(PROMPTS)
    assert likeliest.ids == [own[max(range(4), key=lambda s: means[4 * p + s])] for p, own in enumerate(ids)]
    assert [score for choice in likeliest.choices for score in choice.scores] == pytest.approx(means)

    longest = BestOfN(source, 4, by=ScoredBy(lambda candidate: len(candidate.ids)))(PROMPTS)
    assert longest.ids == [max(own, key=len) for own in ids]

    firsts = BestOfN(source, 4, by=SelfConsistency(lambda candidate: candidate.ids[0]))(PROMPTS)
    for own, choice in zip(ids, firsts.choices, strict=True):
        answers = [one[0] for one in own]
        most = max(answers, key=lambda answer: (answers.count(answer), -answers.index(answer)))

        assert own[answers.index(most)] == choice.chosen.ids

    risk = BestOfN(source, 4, by=MinimumBayesRisk())(PROMPTS)
    for choice in risk.choices:
        every = choice.candidates
        means = [sum(unigram_f1(one, other) for other in every) / 4 for one in every]

        assert list(choice.scores) == pytest.approx(means)
        assert choice.chosen is every[means.index(max(means))]


@pytest.mark.parametrize("kind", [0, 1], ids=["generator", "batcher"])
def test_a_stream_is_the_events_and_then_the_result(kind: int) -> None:
    """Which add up to the candidates; the statistics are those of all samples."""
    parts = generator()
    fold = BestOfN(sources(parts)[kind], 4, by=SelfConsistency())
    *events, result = fold.stream(PROMPTS)
    ids: list[list[int]] = [[] for _ in range(12)]
    for event in events:
        assert isinstance(event, Event)
        ids[event.row] += event.ids

    assert isinstance(result, Choices)
    assert ids == [candidate.ids for choice in result.choices for candidate in choice.candidates]
    assert result.ids == fold(PROMPTS).ids
    assert sum(map(len, ids)) == result.statistics.tokens
    assert 12 == result.statistics.first_tokens
    assert 12 == len({event.row for event in events if event.finish is not None})


def test_a_closed_stream_ends_the_generation() -> None:
    """The decoder is not fed any more, and the requests are cancelled."""
    parts = generator()
    batcher = Batcher(scripted(3))
    for source, decoder in ((parts, parts.decoder), (Batched(batcher, parts.parts), batcher.decoder)):
        stream = BestOfN(source, 4).stream(PROMPTS)
        next(stream)
        before = len(decoder.forwards)
        stream.close()

        assert before == len(decoder.forwards)
    while batcher.num_waiting or batcher._requests:
        batcher.step()
    assert batcher.statistics.tokens < 12


def test_a_stream_that_is_closed_before_it_begins_leaves_no_request() -> None:
    """Its rows are free for others."""
    parts = generator().parts
    batcher = Batcher(scripted(2))
    source = Batched(batcher, parts, {"max_unread": 1})
    BestOfN(source, 2, by=LogLikelihood()).stream([1]).close()

    assert generator()([2]).ids == batcher.submit(parts, [2]).result(timeout=60).ids


@pytest.mark.parametrize("kind", [0, 1])
def test_without_a_prompt(kind: int) -> None:
    """Samples begin with the start token."""
    best = BestOfN(sources(generator(start_of_sequence=4))[kind], 3, by=LogLikelihood())

    assert best([4]).ids == best(None).ids


def test_more_samples_than_rows_take_turns() -> None:
    """With the same samples."""
    many = BestOfN(generator(5), 16, by=SelfConsistency())(PROMPTS[0])
    wide = BestOfN(generator(16), 16, by=SelfConsistency())(PROMPTS[0])

    assert [one.ids for one in wide.choices[0].candidates] == [one.ids for one in many.choices[0].candidates]


@pytest.mark.parametrize("kind", [0, 1], ids=["generator", "batcher"])
def test_a_prompt_is_fed_once(kind: int) -> None:
    """Where the decoder copies rows, the samples take their prompt from the first."""
    decoder = scripted(4, row_widths=(5, 16), copies_rows=True)
    parts = Generator(decoder, **PARTS)
    prompt = [1, 2, 3, 4] * 8
    result = BestOfN([parts, Batched(Batcher(decoder), parts.parts)][kind], 4)(prompt)

    assert [one.ids for one in BestOfN(generator(4), 4)(prompt).choices[0].candidates] == [
        one.ids for one in result.choices[0].candidates
    ]
    assert result.statistics.reused >= 3 * 28


def test_texts_with_a_tokenizer() -> None:
    """Of the candidates, and of the choice."""

    class Words:
        all_special_tokens = ()

        def convert_ids_to_tokens(self, token: int) -> str:
            return f" {token}"

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [int(one) for one in text.split()]}

        def decode(self, ids: list[int], **options: Any) -> str:
            return "".join(f" {token}" for token in ids)

    fold = BestOfN(generator(tokenizer=Words()), 4, by=SelfConsistency(lambda one: str(one.text)[:2]))
    result = fold("1 2 3")
    candidates = result.choices[0].candidates

    assert ["".join(f" {token}" for token in one.ids) for one in candidates] == [
        one.text for one in candidates
    ]
    assert [result.choices[0].chosen.text] == result.text
    assert BestOfN(generator(), 4)([1]).text is None


def test_of_a_guided_decoder() -> None:
    """As of any other."""
    guided = Generator(Guided(scripted(8), 1.5), **PARTS)
    result = BestOfN(guided, 4)([1, 2])
    for stream, candidate in enumerate(result.choices[0].candidates):
        assert guided([1, 2], [stream]).ids == [candidate.ids]


def test_of_a_model(tiny_model: Any) -> None:
    """The scores are the stock model's mean log-probabilities."""
    model: PreTrainedModel = tiny_model("llama", torch.float64)
    decoder = StaticDecoder(model, batch_size=4, max_length=64, widths=(1, 5, 16))
    generate = Generator(decoder, processors=Temperature(0.8), sampler=Sample(3), stop=MaxNewTokens(8))
    choice = BestOfN(generate, 4)([11, 5, 2]).choices[0]
    for score, one in zip(choice.scores, choice.candidates, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([one.prompt + one.ids])).logits[0, 2:-1].log_softmax(dim=-1)
        expected = logits.gather(-1, torch.tensor(one.ids)[:, None]).mean()

        assert float(expected) == pytest.approx(score, abs=1e-5)


def test_a_score_that_is_no_number_is_never_chosen() -> None:
    """Unless all are."""
    scores = iter([math.nan, 1.0, math.nan])
    choice = BestOfN(generator(), 3, by=ScoredBy(lambda candidate: next(scores)))([1]).choices[0]

    assert (-math.inf, 1.0, -math.inf) == choice.scores
    assert 1 == choice.index


class TooFew:
    """A scorer that forgets some."""

    logprobs = None

    def __call__(self, candidates: Any) -> list[float]:
        return [0.0]


def test_bad_arguments_are_refused() -> None:
    """Before anything is fed, where it can be known."""
    ours = generator()
    with pytest.raises(TypeError, match="'source' must be a Generator, or Batched"):
        BestOfN(scripted(1), 4)
    with pytest.raises(TypeError, match=r"'by' must score .* ScoredBy\(function\)"):
        BestOfN(ours, 4, by=len)
    with pytest.raises(TypeError, match="'by' must score"):
        BestOfN(ours, 4, by=SelfConsistency)
    with pytest.raises(ValueError, match=r"'sampler' must sample at random.* got Greedy\(\)"):
        BestOfN(Generator(scripted(4), sampler=Greedy()), 4)
    with pytest.raises(TypeError, match="'num_samples' must be a whole number"):
        BestOfN(ours, 4.5)
    with pytest.raises(ValueError, match="'num_samples' must be >= 1"):
        BestOfN(ours, 0)
    with pytest.raises(TypeError, match="'random_stream' must be a whole number"):
        BestOfN(ours, 4)([1], random_stream=0.5)
    with pytest.raises(ValueError, match="the vocabulary"):
        BestOfN(ours, 4).stream([99])
    with pytest.raises(TypeError, match="'batcher' must be"):
        Batched(scripted(1), ours.parts)
    with pytest.raises(ValueError, match=r"'options' must be .* got \['streamer'\]"):
        Batched(Batcher(scripted(1)), ours.parts, {"streamer": None})

    assert [] == ours.decoder.forwards
    with pytest.raises(ValueError, match="must give 4 scores, one for each sample: got 1"):
        BestOfN(ours, 4, by=TooFew())([1])


def test_a_full_batcher_takes_none_of_a_call() -> None:
    """The prompts that were queued before the refusal are cancelled."""
    batcher = Batcher(scripted(3), max_waiting=2)
    with pytest.raises(RuntimeError, match="max_waiting=2"):
        BestOfN(Batched(batcher, generator().parts), 4)(PROMPTS)
    batcher.close()

    assert 0 == batcher.statistics.tokens
