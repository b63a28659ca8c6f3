"""Tokens of a chosen probability."""

import math
from typing import Any

import pytest
import torch

from decodekit.decoding import AdaptiveP
from decodekit.decoding.sampling import noise

from .by_definition import draw, history_at, softmax


class TestAdaptiveP:
    @pytest.mark.parametrize(("target", "decay"), [(0.3, 0.9), (0.9, 0.5), (0.0, 0.99), (0.5, 0.0)])
    @pytest.mark.parametrize("masked", [False, True])
    def test_equals_its_definition(self, target: float, decay: float, masked: bool) -> None:
        """30 steps of two rows give llama.cpp's tokens and sums, fed with the same noise."""
        rng = torch.Generator().manual_seed(7)
        random_streams = noise.random_streams(torch.arange(2), 5)
        run = AdaptiveP(target, decay).begin(2)
        sums, weights = [target / (1 - decay)] * 2, [1 / (1 - decay)] * 2
        for step in range(30):
            logits = 3 * torch.randn(2, 1, 20, generator=rng)
            if masked:
                logits[torch.rand(logits.shape, generator=rng) < 0.4] = -torch.inf
            ids = run(logits, history_at([4 + step, 9 + step], random_streams))
            for row, position in enumerate([4 + step, 9 + step]):
                scores = logits[row, 0].double().tolist()
                probs = softmax(scores)
                adapted = min(max(2 * target - sums[row] / weights[row], 0.0), 1.0)
                distances = [abs(p - adapted) / 0.3 for p in probs]
                moved = [
                    -math.inf if x == -math.inf else 5 - 10 * d * d / (1 + d)
                    for x, d in zip(scores, distances, strict=True)
                ]
                token = draw(moved, int(random_streams[row]), position)
                sums[row] = probs[token] + decay * sums[row]
                weights[row] = 1 + decay * weights[row]

                assert token == int(ids[row])
                assert sums[row] / weights[row] == pytest.approx(float(run.average[row]), abs=1e-12)

    @pytest.mark.parametrize(
        ("target", "average", "probs", "distances"),
        [
            pytest.param(0.5, 0.5, [0.5, 0.25, 0.25], [0, 5 / 6, 5 / 6], id="on-target"),
            pytest.param(0.3, 0.35, [0.5, 0.25, 0.25], [5 / 6, 0, 0], id="aims-below-what-was-above"),
            pytest.param(0.1, 0.4, [0.15] * 4 + [0.05] * 8, [1 / 2] * 4 + [1 / 6] * 8, id="not-below-0"),
            pytest.param(0.9, 0.4, [0.55, 0.45], [3 / 2, 11 / 6], id="not-above-1"),
        ],
    )
    def test_draws_near_the_target_by_hand(
        self, target: float, average: float, probs: list[float], distances: list[float]
    ) -> None:
        """The logit is 5 - 10 d² / (1 + d), d the distance from 2 · target - average in units of 0.3."""
        n = 100_000
        run = AdaptiveP(target).begin(n)
        run.average = torch.full((n,), average, dtype=torch.float64)
        logits = torch.tensor(probs).log().expand(n, 1, -1)
        ids = run(logits, history_at([1] * n, noise.random_streams(torch.arange(n), 0)))
        expected = torch.tensor(softmax([5 - 10 * d * d / (1 + d) for d in distances]))
        frequency = torch.bincount(ids.flatten(), minlength=len(probs)) / n

        assert ((frequency - expected).abs() <= 5 * (expected * (1 - expected) / n).sqrt()).all()

    @pytest.mark.mostly_slow(every=3)
    @pytest.mark.parametrize("target", [0.1, 0.2, 0.3])
    def test_keeps_the_probability(self, target: float) -> None:
        """On average over 3,000 tokens the chosen ones have the target's probability, nearly."""
        probs = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.02])
        run = AdaptiveP(target).begin(1)
        total = 0.0
        for position in range(1, 3001):
            run(probs.log()[None, None], history_at([position], torch.tensor([3])))
            total += float(probs[run.sampled])

        assert target == pytest.approx(total / 3000, abs=0.03)

    def test_makes_up_for_the_past(self) -> None:
        """After a certain token the next target lies below, as far as it may."""
        run = AdaptiveP(0.5, 0.0).begin(1)
        stream = torch.tensor([0])
        run(torch.tensor([[[0.0, -math.inf]]]), history_at([1], stream))

        assert [1.0] == run.average.tolist()
        # The target is 2 · 0.5 - 1 = 0: of 0.999 and 0.001 the second, by 5 to about -20.6.
        run(torch.tensor([[[0.999, 0.001]]]).log(), history_at([2], stream))
        assert [1] == run.sampled.tolist()

    def test_a_row_without_a_token_learns_nothing(self) -> None:
        """The average stays a number."""
        run = AdaptiveP(0.5).begin(1)
        run(torch.full((1, 1, 3), -math.inf), history_at([1], torch.tensor([0])))

        assert [0.5] == run.average.tolist()

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"target": -1.0}, ValueError, r"'target' must be in \[0, 1\]: got -1.0"),
            ({"target": None}, TypeError, "'target' must be a number: got None, a NoneType"),
            ({"target": 0.5, "decay": 1.0}, ValueError, r"'decay' must be in \[0, 0.99\]: got 1.0"),
            ({"target": 0.5, "seed": "a"}, TypeError, "'seed' must be"),
        ],
    )
    def test_refuses(self, settings: dict[str, Any], error: type[Exception], message: str) -> None:
        """The message has the rule and the value."""
        with pytest.raises(error, match=message):
            AdaptiveP(**settings)
