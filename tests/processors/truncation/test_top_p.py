"""Nucleus (top-p) filtering."""

import pytest
import torch

from decodekit.processors import TopP

from ..by_hand import NOTHING, kept, run

PROBS = [0.15, 0.5, 0.05, 0.3]


class TestTopP:
    @pytest.mark.parametrize(
        ("p", "expected"),
        [
            pytest.param(1e-9, [1], id="at-least-one-stays"),
            pytest.param(0.45, [1], id="the-first-is-enough"),
            # 0.5 < 0.6: the token that crosses p stays.
            pytest.param(0.6, [1, 3], id="crossing-token-stays"),
            # 0.5 + 0.3 = 0.8 < 0.9 < 0.95
            pytest.param(0.9, [0, 1, 3], id="only-the-last-goes"),
            pytest.param(0.99, [0, 1, 2, 3], id="all-needed"),
            pytest.param(1.0, [0, 1, 2, 3], id="off"),
            pytest.param([0.6], [1, 3], id="per-row"),
            pytest.param([1], [0, 1, 2, 3], id="per-row-off"),
        ],
    )
    def test_keeps_the_smallest_set_that_reaches_p(self, p: float | list[float], expected: list[int]) -> None:
        """The nucleus of [0.5, 0.3, 0.15, 0.05], whatever the order of the ids."""
        assert expected == kept(TopP(p), PROBS)

    def test_drops_a_tail_of_exactly_one_minus_p(self) -> None:
        """Quarters do not round: a tail of 1/4 + 1/4 = 1 - 1/2 goes, and at 0.51 it is 1/4 alone."""
        quarters = [0.0, 0.0, 0.0, 0.0]

        assert [-float("inf"), -float("inf"), 0.0, 0.0] == run(TopP(0.5), quarters)
        assert [-float("inf"), 0.0, 0.0, 0.0] == run(TopP(0.51), quarters)

    def test_of_equal_tokens_drops_the_lower_id_first(self) -> None:
        """The ascending stable sort of Hugging Face's rule decides ties, on every machine alike."""
        probs = torch.full((1, 1, 4096), 1 / 4096)

        processed = TopP(0.25)(probs.log(), NOTHING)

        assert torch.equal(torch.arange(3072, 4096), (processed[0, 0] > -torch.inf).nonzero()[:, 0])

    @pytest.mark.parametrize(
        ("ties", "expected"),
        [
            pytest.param("last", [0, 1, 2, 4], id="as-Hugging-Face"),
            pytest.param("first", [0, 1, 2, 3], id="as-TensorRT-LLM"),
            pytest.param("keep", [0, 1, 2, 3, 4], id="as-FlashInfer"),
        ],
    )
    def test_ends_among_equal_tokens_as_ties_says(self, ties: str, expected: list[int]) -> None:
        """1/2 + 1/4 + 1/8 = 0.875 is not enough: of the two tokens of 1/16, one or the other or both stay."""
        assert expected == kept(TopP(0.9, ties=ties), [0.5, 0.25, 0.125, 0.0625, 0.0625])

    def test_keeps_at_least_min_tokens(self) -> None:
        """The likeliest, though fewer would reach p."""
        assert [0, 1, 3] == kept(TopP(0.1, min_tokens=3), PROBS)

    def test_has_room_in_half_precision(self) -> None:
        """Weights up to 2^34 do not become infinite: the same tokens stay as in float32."""
        logits = 3 * torch.randn(1, 1, 400, generator=torch.Generator().manual_seed(0))
        for half in (torch.float16, torch.bfloat16):
            few = logits.to(half)

            assert torch.equal(
                TopP(0.9)(few.float(), NOTHING) > -torch.inf, TopP(0.9)(few, NOTHING) > -torch.inf
            )

    def test_at_1_in_a_row_spares_what_rounds_to_nothing(self) -> None:
        """A token of probability e^-200, 0 in float32, stays when its row is off."""
        assert [0.0, -200.0] == run(TopP([1.0]), [0.0, -200.0])

    def test_at_nearly_1_drops_what_rounds_to_nothing(self) -> None:
        """As Hugging Face does, and 1 - p is taken in double: 1 - 1e-9 is not 1."""
        assert [0.0, -float("inf")] == run(TopP([1 - 1e-9]), [0.0, -200.0])
        assert [0.0, -float("inf")] == run(TopP(1 - 1e-9), [0.0, -200.0])

    @pytest.mark.parametrize(("option", "value"), [("ties", "both"), ("min_tokens", 0), ("min_tokens", True)])
    def test_refuses_options_it_does_not_know(self, option: str, value: object) -> None:
        """By name."""
        with pytest.raises((ValueError, TypeError), match=f"'{option}' must be"):
            TopP(0.5, **{option: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize("p", [0.0, -0.1, 1.1, float("nan"), [0.5, 0.0]])
    def test_refuses_p_outside_its_range(self, p: float | list[float]) -> None:
        """An empty nucleus cannot be asked for."""
        with pytest.raises(ValueError, match=r"'p' must be in \(0, 1\].*: got "):
            TopP(p)
