"""Where rows end."""

import pytest
import torch

from decodekit.decoding import (
    EndOfSequence,
    Finish,
    History,
    MaxLength,
    MaxNewTokens,
    StopTokens,
)
from decodekit.decoding.protocols import StopCondition
from decodekit.processors import TopK


def codes(condition: StopCondition, ids: list[list[int]], prompt: int = 1) -> list[list[int]]:
    """The codes of *condition* at every token after the prompt."""
    tokens = torch.tensor(ids)
    length = torch.arange(prompt + 1, tokens.shape[1] + 1).expand(len(ids), -1)
    history = History(
        tokens[:, None], length, torch.full((len(ids),), prompt), torch.zeros(len(ids), dtype=torch.int64)
    )
    return condition(torch.zeros(*length.shape, 10), history).tolist()


class TestMaxNewTokens:
    def test_counts_what_is_new(self) -> None:
        """The prompt does not count, and the condition stays true."""
        assert [[0, 0, 1, 1]] == codes(MaxNewTokens(3), [[9, 9, 1, 2, 3, 4]], prompt=2)

    def test_takes_one_number_a_row(self) -> None:
        """Rows may have different limits."""
        assert [[0, 1, 1], [1, 1, 1]] == codes(MaxNewTokens([2, 1]), [[9, 1, 2, 3]] * 2)

    @pytest.mark.parametrize("n", [0, -1, [3, 0]])
    def test_must_be_positive(self, n: int | list[int]) -> None:
        """No row has zero tokens: one is always chosen."""
        with pytest.raises(ValueError, match="'n' must be at least 1"):
            MaxNewTokens(n)

    @pytest.mark.parametrize("n", [1.5, True, [], None, "a", [None]])
    def test_must_be_whole(self, n: object) -> None:
        """Fractions, booleans and nothing are no numbers of tokens."""
        with pytest.raises(TypeError, match="'n' must be a whole number"):
            MaxNewTokens(n)  # type: ignore[arg-type]

    def test_rows_must_match(self) -> None:
        """Two limits for three rows are refused."""
        with pytest.raises(ValueError, match="one for each of the 3 rows: got 2"):
            codes(MaxNewTokens([1, 2]), [[9, 1]] * 3)


class TestMaxLength:
    def test_counts_the_prompt(self) -> None:
        """Four tokens are two of the prompt and two new ones."""
        assert [[0, 1, 1]] == codes(MaxLength(4), [[9, 9, 1, 2, 3]], prompt=2)

    def test_takes_one_number_a_row(self) -> None:
        """Rows may have different limits; one that the prompt alone reaches leaves one token."""
        assert [[0, 1, 1], [1, 1, 1]] == codes(MaxLength([3, 1]), [[9, 1, 2, 3]] * 2)
        assert Finish("max_length") == MaxLength(3).finishes[0]

    def test_rows_must_match(self) -> None:
        """Two limits for three rows are refused."""
        with pytest.raises(ValueError, match="one for each of the 3 rows: got 2"):
            codes(MaxLength([1, 2]), [[9, 1]] * 3)


class TestStopTokens:
    def test_says_which(self) -> None:
        """The code tells which token ended the row."""
        stop = StopTokens([4, 7])

        assert [[0, 2, 0, 1]] == codes(stop, [[9, 1, 7, 2, 4]])
        assert (Finish("stop_token", 4), Finish("stop_token", 7)) == stop.finishes

    def test_end_of_sequence_is_named_as_such(self) -> None:
        """The model's own end is told from a stop that the caller set."""
        assert (Finish("end_of_sequence", 2),) == EndOfSequence(2).finishes

    @pytest.mark.parametrize(
        ("ids", "error"),
        [(None, TypeError), ([], TypeError), ([True], TypeError), ("a", TypeError), (-1, ValueError)],
    )
    def test_must_be_ids(self, ids: object, error: type[Exception]) -> None:
        """A tokenizer without an end-of-sequence token gives None: refused, not ignored."""
        with pytest.raises(error, match="'ids' must be"):
            EndOfSequence(ids)  # type: ignore[arg-type]


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
