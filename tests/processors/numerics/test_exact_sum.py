"""Sums independent of the order of their terms."""

import torch

from decodekit.processors.numerics.exact_sum import exact_sum, whole_weights


class TestWholeWeights:
    def test_are_the_probabilities_in_proportion(self) -> None:
        """A half, a quarter and two eighths come out exactly so."""
        weights = whole_weights(torch.tensor([0.5, 0.25, 0.125, 0.125]).log())

        assert [2.0**34, 2.0**33, 2.0**32, 2.0**32] == weights.tolist()

    def test_of_masked_tokens_are_zero(self) -> None:
        """Also where everything is masked."""
        logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]])

        assert [[2.0**34, 0.0], [0.0, 0.0]] == whole_weights(logits).tolist()

    def test_of_a_token_do_not_depend_on_its_place(self) -> None:
        """Alone, at the end or inside: a processor's vector instructions must not round otherwise."""
        logits = 4 * torch.randn(4099, generator=torch.Generator().manual_seed(0)).clamp(max=3)
        logits[0] = 12.0
        whole = whole_weights(logits)
        for count in (1, 3, 7, 8, 15, 17, 50, 1001):
            for start in range(1, 4099 - count, 61):
                part = torch.cat([logits[:1], logits[start : start + count]])

                assert torch.equal(whole[start : start + count], whole_weights(part)[1:])

    def test_add_up_the_same_in_any_order(self) -> None:
        """Shuffled, and with masked tokens strewn in, the sum has the same bits."""
        logits = 3 * torch.randn(99_997, generator=torch.Generator().manual_seed(0))
        total = whole_weights(logits).sum()
        strewn = torch.full((150_001,), -torch.inf)
        strewn[torch.randperm(150_001)[:99_997]] = logits

        assert total == whole_weights(logits.flip(0)).sum() == whole_weights(strewn).sum()
        # Ordinary sums do not have that.
        assert torch.equal(total, whole_weights(logits).cumsum(0)[-1])


class TestExactSum:
    def test_is_the_sum(self) -> None:
        """Up to the bits that are kept."""
        terms = torch.tensor([[0.1, 0.2, 0.3], [-1.5, 0.25, 0.0]])

        torch.testing.assert_close(
            exact_sum(terms), terms.double().sum(-1, keepdim=True), rtol=0, atol=2.0**-33
        )

    def test_is_the_same_in_any_order(self) -> None:
        """Bit for bit."""
        terms = torch.rand(100_000, generator=torch.Generator().manual_seed(0))

        assert torch.equal(exact_sum(terms), exact_sum(terms.flip(0)))
