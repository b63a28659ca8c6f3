"""Penalty on tokens that extend a repetition."""

import pytest
import torch

from decodekit.processors import DRY

from ..by_hand import after, run

ZEROS = [0.0] * 5


class TestDRY:
    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            # 1 2 came before 3, and has just come: 1 · 2^0.
            pytest.param([1, 2, 3, 1, 2], [0.0, 0.0, 0.0, -1.0, 0.0], id="as-long-as-allowed"),
            # 4 1 2 came before 3: 1 · 2^1.
            pytest.param([4, 1, 2, 3, 4, 1, 2], [0.0, 0.0, 0.0, -2.0, 0.0], id="one-longer"),
            # 2 alone is too short a match.
            pytest.param([2, 3, 1, 2], ZEROS, id="too-short"),
            # After 1 2 came 3 and, the second time, 4.
            pytest.param([1, 2, 3, 1, 2, 4, 1, 2], [0.0, 0.0, 0.0, -1.0, -1.0], id="two-continuations"),
            # 3 followed 1 2, and later 1 2 3 4 1 2: the longer match counts, once. 2^4.
            pytest.param([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [0.0, 0.0, 0.0, -16.0, 0.0], id="longest"),
            # Five times 1: four of them are followed by 1, a match that overlaps itself.
            pytest.param([1, 1, 1, 1, 1], [0.0, -4.0, 0.0, 0.0, 0.0], id="overlapping"),
            pytest.param([], ZEROS, id="nothing-said"),
        ],
    )
    def test_penalises_by_the_length_of_the_match(self, ids: list[int], expected: list[float]) -> None:
        """Multiplier · base^(length - allowed_length), of the longest match before each token."""
        assert expected == run(DRY(1.0, base=2.0), ZEROS, after(ids))

    def test_does_not_match_across_a_breaker(self) -> None:
        """Of 4 0 1 2 only 1 2 counts when 0 is a line break."""
        history = after([4, 0, 1, 2, 3, 4, 0, 1, 2])

        assert [0.0, 0.0, 0.0, -4.0, 0.0] == run(DRY(1.0, base=2.0), ZEROS, history)
        assert [0.0, 0.0, 0.0, -1.0, 0.0] == run(DRY(1.0, base=2.0, breakers=[0]), ZEROS, history)

    def test_does_not_match_across_a_breaker_of_two_tokens(self) -> None:
        """4 0 ends in the slot of 0, and there the match ends."""
        history = after([4, 0, 1, 2, 3, 4, 0, 1, 2])

        assert [0.0, 0.0, 0.0, -1.0, 0.0] == run(DRY(1.0, base=2.0, breakers=[(4, 0)]), ZEROS, history)
        assert [0.0, 0.0, 0.0, -4.0, 0.0] == run(DRY(1.0, base=2.0, breakers=[(0, 4)]), ZEROS, history)

    def test_never_penalises_a_breaker(self) -> None:
        """A line break may follow the same words each time."""
        assert ZEROS == run(DRY(1.0, breakers=[3]), ZEROS, after([1, 2, 3, 1, 2]))

    def test_looks_at_the_window_alone(self) -> None:
        """Of the last six tokens the first is 1, so that 4 1 2 is a match of two."""
        history = after([4, 1, 2, 3, 4, 1, 2])

        assert [0.0, 0.0, 0.0, -1.0, 0.0] == run(DRY(1.0, base=2.0, window=6), ZEROS, history)
        assert ZEROS == run(DRY(1.0, base=2.0, window=5), ZEROS, history)

    def test_counts_the_prompt_unless_told_otherwise(self) -> None:
        """The first three tokens are prompt."""
        history = after([1, 2, 3, 1, 2], prompt=3)

        assert [0.0, 0.0, 0.0, -1.0, 0.0] == run(DRY(1.0), ZEROS, history)
        assert ZEROS == run(DRY(1.0, include_prompt=False), ZEROS, history)

    def test_costs_no_more_beyond_its_longest_match(self) -> None:
        """Sixty times the same token is a match of 59, of which three count."""
        history = after([1] * 60)

        assert -2.0 == run(DRY(1.0, base=2.0, max_match=3), ZEROS, history)[1]
        assert -(2.0**48) == run(DRY(1.0, base=2.0), ZEROS, history)[1]

    @pytest.mark.parametrize("allowed_length", [4, 2**31, 2**63 - 1])
    def test_penalises_nothing_where_no_match_is_long_enough(self, allowed_length: int) -> None:
        """No match is longer than three, and no table is made for those that would be."""
        dry = DRY(1.0, base=2.0, allowed_length=allowed_length, max_match=3)

        assert ZEROS == run(dry, ZEROS, after([1] * 60))

    def test_overflows_nowhere(self) -> None:
        """Half the largest float32 is the largest penalty, and forbidden tokens stay forbidden."""
        penalised = run(DRY(1e38, base=1e38), [-float("inf"), 3.0], after([1] * 60))

        assert [-float("inf"), -torch.finfo(torch.float32).max / 2] == penalised

    def test_takes_all_parameters_per_row(self) -> None:
        """Each row of a batch has its own multiplier, base and allowed length."""
        history = after([1, 1, 1, 1]).rows(torch.tensor([0, 0, 0]))
        dry = DRY([1.0, 3.0, 0.0], base=[2.0, 3.0, 2.0], allowed_length=[1, 2, 1])

        processed = dry(torch.zeros(3, 1, 2), history)

        # A match of three: 1 · 2^2, 3 · 3^1 and nothing.
        assert [-4.0, -9.0, 0.0] == processed[:, 0, 1].tolist()

    def test_refuses_rows_of_different_number(self) -> None:
        """They could not belong to one batch."""
        with pytest.raises(ValueError, match=r"as many rows as each other: got \[2, 1, 3\]"):
            DRY([1.0, 2.0], allowed_length=[1, 2, 3])

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"multiplier": -1.0}, "'multiplier' must be >= 0"),
            ({"multiplier": 1.0, "base": 0.5}, "'base' must be >= 1"),
            ({"multiplier": 1.0, "allowed_length": 0}, "'allowed_length' must be >= 1"),
            ({"multiplier": 1.0, "window": -1}, "'window' must be >= 0"),
            ({"multiplier": 1.0, "max_match": 0}, "'max_match' must be 1 to 1048576: got 0"),
            ({"multiplier": 1.0, "max_match": 10**30}, f"'max_match' must be 1 to 1048576: got {10**30}"),
            ({"multiplier": 1.0, "breakers": [()]}, "at least one id"),
        ],
    )
    def test_refuses_what_makes_no_penalty(self, parameters: dict[str, float], message: str) -> None:
        """The message names the parameter, its rule and the value."""
        with pytest.raises(ValueError, match=message):
            DRY(**parameters)  # type: ignore[arg-type]

    @pytest.mark.parametrize("breakers", ["\n", 3, [None]])
    def test_refuses_breakers_that_are_no_ids(self, breakers: object) -> None:
        """Text has to be turned into ids first."""
        with pytest.raises(TypeError, match="token"):
            DRY(1.0, breakers=breakers)  # type: ignore[arg-type]

    def test_forbids_nothing_in_half_precision(self) -> None:
        """2^48 is beyond float16: half of its largest number, 65504, is subtracted, and -20 is left apart."""
        logits = torch.full((1, 1, 2), -20.0, dtype=torch.float16)

        processed = DRY(1.0, base=2.0)(logits, after([0, 1] * 32))

        assert [-32768.0, -20.0] == processed[0, 0].tolist()
