"""Sampled tokens follow the distribution that the chain leaves."""

import math

import pytest
import torch

from decodekit.decoding import History, Sample, SamplingPipeline
from decodekit.decoding.protocols import Processor
from decodekit.decoding.sampling import noise
from decodekit.processors import (
    XTC,
    Chain,
    DynamicTemperature,
    FrequencyPenalty,
    MinP,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    Typical,
)

from .entries.entry import Entry
from .test_catalogue import CATALOGUE

VOCAB = 300
"""Wide enough for sampling from candidates alone."""


def rows(count: int) -> tuple[torch.Tensor, History]:
    """The same logits and tokens in every row, with a random stream for each."""
    logits = 1.5 * torch.randn(1, 1, VOCAB, generator=torch.Generator().manual_seed(5))
    ids = torch.tensor([[[1, 2, 3, 1, 2, 0, 0, 0]]]).expand(count, 1, 8)
    random_streams = noise.random_streams(torch.arange(count), seed=11)
    length, prompt = torch.full((count, 1), 5), torch.full((count,), 2)
    return logits.expand(count, 1, VOCAB).contiguous(), History(ids, length, prompt, random_streams)


def deviation(processor: Processor, count: int) -> float:
    """
    How many standard deviations chi-square lies above its mean.

    By Wilson and Hilferty's cube-root approximation. Tokens expected fewer than 10 times are
    pooled; tokens of probability 0 must not be drawn.
    """
    logits, history = rows(count)
    probs = processor(logits, history).double().softmax(dim=-1)[:, 0]
    drawn = SamplingPipeline(processor, Sample(seed=0))(logits, history)[0][:, 0]

    if probs.isnan().all():  # a hard constraint that these tokens do not meet
        assert (drawn == -1).all()

        return 0.0
    assert (probs.gather(-1, drawn[:, None]) > 0).all()

    expected, counts = probs.sum(dim=0), torch.bincount(drawn, minlength=VOCAB)
    often = expected >= 10
    cells = [(expected[often], counts[often]), (expected[~often].sum()[None], counts[~often].sum()[None])]
    cells = [(e, c) for e, c in cells if e.sum() >= 10]
    freedom = sum(len(e) for e, _ in cells) - 1
    if freedom < 1:
        return 0.0
    chi2 = sum(float(((c - e) ** 2 / e).sum()) for e, c in cells)
    spread = 2 / (9 * freedom)
    return ((chi2 / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


class TestSample:
    @pytest.mark.mostly_slow(every=15)
    @pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE.keys())
    def test_draws_what_every_processor_leaves(self, entry: Entry) -> None:
        """Frequencies of thousands of rows, within 5 standard deviations (once in three million)."""
        assert deviation(entry.make(entry.example), 1000 if entry.host_only else 20_000) < 5

    @pytest.mark.mostly_slow(every=3)
    @pytest.mark.parametrize(
        "chain",
        [
            RepetitionPenalty(1.3) | Temperature(0.8) | TopK(20) | TopP(0.9),
            Temperature(1.5) | TopP(0.95),
            TopK(40) | DynamicTemperature(0.5, 2.0) | MinP(0.1),
            FrequencyPenalty(0.5) | Typical(0.9) | XTC(0.5, 0.05),
            TopP(0.3) | Temperature(3.0),
            Chain(),
        ],
        ids=str,
    )
    def test_draws_what_chains_leave(self, chain: Processor) -> None:
        """Also for chains, which run on the survivors alone."""
        assert deviation(chain, 20_000) < 5

    def test_would_not_pass_for_another_distribution(self) -> None:
        """Samples at temperature 1 are told from a temperature of 0.95."""

        def warmer(logits: torch.Tensor, history: History) -> torch.Tensor:
            # The first call computes the expected distribution, the second the sampled one.
            calls.append(1)
            return logits / (0.95 if len(calls) == 1 else 1.0)

        calls: list[int] = []

        assert deviation(warmer, 20_000) > 5
