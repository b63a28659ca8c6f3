"""Relative probabilities and entropy, independent of the order of the vocabulary."""

import math

import torch

from decodekit.processors.numerics.likelihood import entropy, relative
from decodekit.processors.numerics.ranking import below_best

HALVED = torch.tensor([0.125, 0.5, 0.25, 0.125]).log()
NONE_LEFT = torch.full((3,), -torch.inf)


class TestRelative:
    def test_weights_are_relative_to_the_top_token(self) -> None:
        """A half weighs 1, so all weigh 2."""
        gaps, weights, total = relative(HALVED)

        assert [0.25, 1.0, 0.5, 0.25] == weights.tolist()
        assert [2.0] == total.tolist()
        assert torch.equal(HALVED - HALVED[1], gaps)

    def test_of_masked_tokens_are_zero(self) -> None:
        """Also where everything is masked."""
        assert [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]] == relative(
            torch.stack((torch.tensor([7.0, -torch.inf, -torch.inf]), NONE_LEFT))
        )[1].tolist()
        assert [0.0] == relative(NONE_LEFT)[2].tolist()
        assert [-math.inf] * 3 == below_best(NONE_LEFT).tolist()


class TestEntropy:
    def test_is_the_expected_surprise(self) -> None:
        """1.75 bits; masked tokens add nothing."""
        masked = torch.cat((HALVED, NONE_LEFT))

        assert abs(entropy(*relative(HALVED)).item() - 1.75 * math.log(2)) < 1e-7
        assert torch.equal(entropy(*relative(HALVED)), entropy(*relative(masked)))

    def test_of_a_uniform_distribution_is_the_logarithm(self) -> None:
        """Exactly, at any size."""
        for n in (1, 2, 3, 1000):
            assert torch.tensor([float(n)], dtype=torch.float64).log() == entropy(
                *relative(torch.full((n,), 0.3))
            )

    def test_of_certainty_is_zero(self) -> None:
        """And never below."""
        assert [0.0] == entropy(*relative(torch.tensor([0.0, -500.0]))).tolist()

    def test_is_the_same_in_any_order(self) -> None:
        """Bit for bit."""
        logits = 3 * torch.randn(100_000, generator=torch.Generator().manual_seed(0))

        assert torch.equal(entropy(*relative(logits)), entropy(*relative(logits.flip(0))))

    def test_of_no_token_is_no_number(self) -> None:
        """The entropy is NaN."""
        assert entropy(*relative(NONE_LEFT)).isnan().all()
