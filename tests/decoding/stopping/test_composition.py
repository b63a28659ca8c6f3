"""Composition of stop conditions."""

import pytest
import torch

from decodekit.decoding import Finish, History, MaxNewTokens, StopTokens
from decodekit.decoding.scores import Scores
from decodekit.processors import TopK

from .condition_codes import codes


class TestComposition:
    def test_or_gives_the_first_to_fire(self) -> None:
        """The earliest token wins; at one token, the condition named first."""
        stop = StopTokens(3) | MaxNewTokens(2) | StopTokens(2)

        assert [[0, 2, 1]] == codes(stop, [[9, 1, 2, 3]])
        assert ["stop_token", "max_new_tokens", "stop_token"] == [e.reason for e in stop.finishes]

    def test_and_needs_both(self) -> None:
        """A minimum of tokens and a stop token: fires where both hold, and names both."""
        stop = StopTokens([5, 6]) & MaxNewTokens(2)

        assert [[0, 2, 0, 1]] == codes(stop, [[9, 5, 6, 1, 5]])
        assert Finish("stop_token and max_new_tokens", (6, None)) == stop.finishes[1]

    def test_and_names_every_pair(self) -> None:
        """Each pair of finishes has its code."""
        stop = StopTokens([5, 6]) & (StopTokens([7]) | StopTokens([6]) | MaxNewTokens(3))
        finishes = [stop.finishes[code - 1] for code in codes(stop, [[9, 6, 1, 5]])[0] if code]

        assert [
            Finish("stop_token and stop_token", (6, 6)),
            Finish("stop_token and max_new_tokens", (5, None)),
        ] == finishes
        assert 6 == len(stop.finishes)

    @pytest.mark.parametrize("other", [TopK(3), lambda scores, history: None, 5])
    def test_composes_with_conditions_only(self, other: object) -> None:
        """A processor, a bare function or a number is refused."""
        with pytest.raises(TypeError, match="stop condition"):
            MaxNewTokens(2) | other  # type: ignore[operator]

    def test_takes_conditions_of_others(self) -> None:
        """Any object with finishes that can be called composes, from either side."""

        class Never:
            finishes = (Finish("never"),)

            def __call__(self, scores: torch.Tensor, history: History) -> torch.Tensor:
                return torch.zeros_like(history.length)

        assert [[0, 2]] == codes(MaxNewTokens.__ror__(MaxNewTokens(2), Never()), [[9, 1, 2]])


class _Wrong:
    """A condition that gives a code that is none of its own."""

    finishes = (Finish("mine"),)

    def __init__(self, code: int):
        self.code = code

    def __call__(self, scores: Scores, history: History) -> torch.Tensor:
        return torch.full(history.length.shape, self.code)


class TestWrongCodes:
    @pytest.mark.parametrize("code", [2, -1])
    @pytest.mark.parametrize(
        "joined",
        [
            lambda wrong: MaxNewTokens(9) | wrong,
            lambda wrong: wrong | MaxNewTokens(9),
            lambda wrong: wrong & MaxNewTokens(9),
            lambda wrong: MaxNewTokens(1) & wrong,
        ],
        ids=["second", "first", "and", "and second"],
    )
    def test_are_named_by_the_condition_that_gave_them(self, code: int, joined) -> None:
        """Rather than taken for another condition's."""
        with pytest.raises(ValueError, match=rf"codes 0 to 1, one for each of its finishes: got \[\[{code}"):
            codes(joined(_Wrong(code)), [[9, 5]])
