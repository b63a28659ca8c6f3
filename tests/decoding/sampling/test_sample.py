"""Greedy and sampled choices."""

import math
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import Generator, Greedy, History, MaxNewTokens, Mirostat, Sample, Sampler
from decodekit.decoding.sampling import noise
from decodekit.testing import ScriptedDecoder


def at_positions(rows: int, width: int = 1, first: int = 1) -> History:
    """Rows of no content at positions *first*, *first* + 1, ..."""
    length = (first + torch.arange(width)).expand(rows, width)
    ids = torch.zeros(rows, 1, first + width, dtype=torch.int64)
    return History(
        ids, length, torch.ones(rows, dtype=torch.int64), noise.random_streams(torch.arange(rows), 0)
    )


class TestGreedy:
    def test_takes_the_first_of_equals(self) -> None:
        """Ties go to the lowest id."""
        logits = torch.tensor([[[1.0, 3.0, 3.0, 2.0]]])

        assert [[1]] == Greedy()(logits, at_positions(1)).tolist()

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
    def test_several_are_the_first_of_the_sorted(self, scores: list[int], data: st.DataObject) -> None:
        """The top choices, first the sampled one; ties by their ids."""
        n = data.draw(st.integers(1, len(scores)))
        logits = torch.tensor([[scores]], dtype=torch.float32)
        expected = sorted(range(len(scores)), key=lambda token: (-scores[token], token))[:n]

        assert [[expected]] == Greedy().top_choices(logits, at_positions(1), n).tolist()


class TestSample:
    @pytest.mark.parametrize("vocab", [1, 2, 3, 4, 5, 17])
    def test_follows_the_softmax(self, vocab: int) -> None:
        """Frequencies of 200,000 draws lie within 5 sigma of the binomial, for every token."""
        n = 200_000
        logits = torch.linspace(-1.5, 1.5, vocab)[None, None].expand(n, 1, vocab)
        drawn = Sample(seed=0)(logits, at_positions(n))
        p = logits[0, 0].double().softmax(-1)
        frequency = torch.bincount(drawn.flatten(), minlength=vocab) / n

        assert ((frequency - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all()

    def test_draws_of_neighbouring_positions_are_independent(self) -> None:
        """Pairs at adjacent positions follow the product distribution (chi-square, 15 cells, 5 sigma)."""
        n, p = 100_000, torch.tensor([0.5, 0.3, 0.15, 0.05])
        drawn = Sample(seed=0)(p.log().expand(n, 2, 4), at_positions(n, 2))
        counts = torch.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16)
        expected = n * torch.outer(p, p).flatten()
        chi2 = float(((counts - expected) ** 2 / expected).sum())

        assert abs(chi2 - 15) < 5 * math.sqrt(2 * 15)

    def test_never_draws_what_is_forbidden(self) -> None:
        """A token at -inf is not drawn, its whole block at -inf included."""
        logits = torch.zeros(5000, 1, 9)
        logits[..., [0, 1, 2, 4, 8]] = -torch.inf
        drawn = Sample(seed=0)(logits, at_positions(5000))

        assert {3, 5, 6, 7} == set(drawn.flatten().tolist())

    @given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**31))
    def test_is_a_function_of_stream_and_position_alone(self, vocab: int, width: int, seed: int) -> None:
        """A row draws alone, and a column alone, what it draws in a batch and a window."""
        logits = torch.randn(3, width, vocab, generator=torch.Generator().manual_seed(seed))
        history = at_positions(3, width)
        together = Sample(seed=0)(logits, history)
        for row in range(3):
            for column in range(width):
                cell = history.rows(slice(row, row + 1))
                cell = History(cell.ids, cell.length[:, column : column + 1], cell.prompt, cell.random_stream)

                assert together[row, column] == Sample(seed=0)(
                    logits[row : row + 1, column : column + 1], cell
                )

    @given(st.integers(1, 30), st.integers(0, 2**31))
    def test_equals_the_definition(self, vocab: int, seed: int) -> None:
        """A block by its mass and its own Gumbel, then a token of it by logit and the token's own Gumbel."""
        logits = torch.randn(1, 1, vocab, generator=torch.Generator().manual_seed(seed))
        history = at_positions(1, first=seed % 100 + 1)
        size = math.ceil(math.sqrt(vocab))

        def gumbel(purpose: int, index: int) -> float:
            return float(
                noise.gumbel(history.random_stream, history.length[0], purpose, torch.tensor([index]))
            )

        scores = logits.double().flatten().tolist()
        blocks = [range(start, min(start + size, vocab)) for start in range(0, vocab, size)]
        masses = [math.log(sum(math.exp(scores[i]) for i in block)) for block in blocks]
        best = max(range(len(blocks)), key=lambda j: masses[j] + gumbel(noise.BLOCK, j))
        token = max(blocks[best], key=lambda i: scores[i] + gumbel(noise.TOKEN, i - blocks[best][0]))

        assert token == int(Sample(seed=0)(logits, history))

    def test_survives_a_shift(self) -> None:
        """Adding a constant to the logits changes no draw."""
        logits = torch.randn(1000, 1, 50, generator=torch.Generator().manual_seed(0)).double()

        assert torch.equal(
            Sample(seed=0)(logits, at_positions(1000)), Sample(seed=0)(logits + 8.0, at_positions(1000))
        )

    def test_couples_alike_distributions(self) -> None:
        """With total variation d, two sides draw alike nearly (1 - d) / (1 + d) of the time."""
        n = 50_000
        p = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.05])
        q = torch.tensor([0.3, 0.4, 0.1, 0.05, 0.1, 0.05])
        history = at_positions(n)
        same = Sample(seed=0)(p.log().expand(n, 1, 6), history) == Sample(seed=0)(
            q.log().expand(n, 1, 6), history
        )
        # Flat Gumbel-max reaches the bound (Daliri et al., 2024); two levels lose a few percent of it.
        variation = 0.5 * float((p - q).abs().sum())
        bound = (1 - variation) / (1 + variation)

        assert float(same.float().mean()) > 0.95 * bound - 5 * math.sqrt(0.25 / n)

    def test_seed_must_be_whole(self) -> None:
        """A seed that is no integer is refused."""
        with pytest.raises(TypeError, match="seed"):
            Sample(seed=0.5)  # type: ignore[arg-type]

    @given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 2**31), st.data())
    def test_several_are_those_that_the_noise_favours(
        self, vocab: int, width: int, seed: int, data: st.DataObject
    ) -> None:
        """What a call draws, then by how much their blocks and they themselves fall behind."""
        n = data.draw(st.integers(1, vocab))
        logits = 2 * torch.randn(2, width, vocab, generator=torch.Generator().manual_seed(seed))
        history = at_positions(2, width)
        for_blocks, for_tokens = Sample(seed=0).noise(history, vocab)
        size = for_tokens.shape[-1]
        top_choices = Sample(seed=0).top_choices(logits, history, n)

        assert torch.equal(Sample(seed=0)(logits, history), top_choices[..., 0])
        for row in range(2):
            for column in range(width):
                blocks = logits[row, column].double().split(size)
                mass = [float(block.logsumexp(0)) for block in blocks]
                top2_margin = [m + float(g) for m, g in zip(mass, for_blocks[row, column], strict=True)]
                behind = {}
                for b, block in enumerate(blocks):
                    noisy = [float(x + g) for x, g in zip(block, for_tokens[row, column], strict=False)]
                    for place, value in enumerate(noisy):
                        behind[b * size + place] = (max(top2_margin) - top2_margin[b]) + (max(noisy) - value)
                expected = sorted(behind, key=behind.__getitem__)[:n]

                assert expected == top_choices[row, column].tolist()


class TestExtremes:
    def test_large_logits_do_not_round_the_noise_off(self) -> None:
        """Only the differences count: of equal tokens, each is sampled at some position."""
        sampled = {
            int(Sample(seed=0)(torch.full((1, 1, 9), 1e30), at_positions(1, first=n))[0, 0])
            for n in range(1, 200)
        }

        assert set(range(9)) == sampled

    def test_nan_is_not_passed_over(self) -> None:
        """Its block and itself come first, whatever the other blocks hold."""
        logits = torch.zeros(1, 1, 9)
        logits[0, 0, 4] = torch.nan

        assert 4 == Sample(seed=0)(logits, at_positions(1))[0, 0]


class TestWithinAnotherSampler:
    """A generator folds the seed of its own sampler, and of no other, into the random streams."""

    def generated(self, sampler: Sampler) -> list[list[int]]:
        """Twelve tokens of two rows."""
        decoder = ScriptedDecoder(torch.zeros(1, 50), batch_size=2)
        return Generator(decoder, sampler=sampler, stop=MaxNewTokens(12))([[1], [2]]).ids

    def test_a_seed_that_would_be_lost_is_refused(self) -> None:
        """The message says how to keep it."""
        inner = Sample(seed=3)

        def custom(logits: Tensor, history: History) -> Tensor:
            return inner(logits, history)

        with pytest.raises(ValueError, match="must have an attribute 'seed' of 3"):
            self.generated(custom)
        # Elsewhere the streams are the caller's.
        assert (1, 1) == tuple(inner(torch.zeros(1, 1, 4), at_positions(1)).shape)

    def test_an_outer_seed_counts(self) -> None:
        """The text is that of the sampler itself, with the seed repeated inside or not."""

        @attrs.frozen
        class Custom:
            inner: Sample
            seed: int = 3

            def __call__(self, logits: Tensor, history: History) -> Tensor:
                return self.inner(logits, history)

        expected = self.generated(Sample(seed=3))

        assert expected == self.generated(Custom(Sample(seed=3))) == self.generated(Custom(Sample(seed=0)))
        assert expected != self.generated(Sample(seed=0))

    def test_without_a_seed_it_is_the_sampler_without_one(self) -> None:
        """Nothing is lost."""
        inner = Sample(seed=0)

        assert self.generated(Sample(seed=0)) == self.generated(
            lambda logits, history: inner(logits, history)
        )


@pytest.mark.parametrize("kind", [Sample, Mirostat])
def test_a_seed_may_be_a_number_of_numpy(kind: Any) -> None:
    """It gives the text of the same number."""
    decoder = ScriptedDecoder(torch.randn(5, 9, generator=torch.Generator().manual_seed(0)))
    texts = [
        Generator(decoder, sampler=kind(seed=seed), stop=MaxNewTokens(8))([1]).ids
        for seed in (-7, np.int64(-7))
    ]

    assert texts[0] == texts[1]
