"""Allowed tokens from a function of the prefix."""

import pytest
import torch
from torch import Tensor

from decodekit.decoding.history import History
from decodekit.processors import PrefixFunction

from ..by_hand import after, kept

EQUAL = [0.25] * 4


class TestPrefixFunction:
    def test_keeps_what_the_function_names(self) -> None:
        """In any order, and as a tensor just as well."""
        assert [0, 2] == kept(PrefixFunction(lambda row, ids: [2, 0, 2]), EQUAL)
        assert [1] == kept(PrefixFunction(lambda row, ids: ids[:1]), EQUAL, after([1, 3]))  # type: ignore[arg-type, return-value]

    def test_is_called_once_for_each_column_with_its_own_prefix(self) -> None:
        """Row by row, and nothing beyond the column's length is shown."""
        calls: list[tuple[int, list[int]]] = []

        def function(row: int, ids: Tensor) -> list[int]:
            calls.append((row, ids.tolist()))
            return [0]

        ids = torch.tensor([[[5, 6, 7, 8]], [[1, 2, 3, 4]]])
        history = History(ids, torch.tensor([[1, 2], [3, 4]]), torch.ones(2).long(), torch.arange(2))
        PrefixFunction(function)(torch.zeros(2, 2, 4), history)

        assert [(0, [5]), (0, [5, 6]), (1, [1, 2, 3]), (1, [1, 2, 3, 4])] == calls

    def test_follows_each_columns_own_path(self) -> None:
        """In a tree, column i lies on path i."""
        history = History(
            torch.tensor([[[1], [2]]]), torch.ones(1, 2).long(), torch.zeros(1).long(), torch.zeros(1)
        )

        processed = PrefixFunction(lambda row, ids: ids.tolist())(torch.zeros(1, 2, 3), history)

        assert [[1], [2]] == [(column > -torch.inf).nonzero()[:, 0].tolist() for column in processed[0]]

    def test_may_name_none(self) -> None:
        """A hard constraint: the row has no token then, and the run says so at its end."""
        assert [] == kept(PrefixFunction(lambda row, ids: []), EQUAL)

    def test_does_not_let_in_what_was_forbidden(self) -> None:
        """A probability of 0 stays 0."""
        assert [1] == kept(PrefixFunction(lambda row, ids: [0, 1]), [0.0, 0.5, 0.5])

    def test_owns_what_it_is_shown(self) -> None:
        """A function that writes into its ids does not change the history."""

        def function(row: int, ids: Tensor) -> list[int]:
            ids.zero_()
            return [1]

        history = after([3, 3])
        kept(PrefixFunction(function), EQUAL, history)

        assert [3, 3, -1] == history.ids[0, 0].tolist()

    def test_refuses_ids_beyond_the_vocabulary(self) -> None:
        """Known only when the logits come."""
        with pytest.raises(ValueError, match="token ids must be < 4, the size of the vocabulary: got 4"):
            kept(PrefixFunction(lambda row, ids: [4]), EQUAL)

    def test_refuses_an_answer_that_is_no_list_of_ids(self) -> None:
        """A function that forgot to return gives None."""
        with pytest.raises(TypeError, match="token ids must be integers: got None"):
            kept(PrefixFunction(lambda row, ids: None), EQUAL)  # type: ignore[arg-type, return-value]

    def test_refuses_what_cannot_be_called(self) -> None:
        """A list of ids is AllowedTokens."""
        with pytest.raises(TypeError, match="callable"):
            PrefixFunction([1, 2])  # type: ignore[arg-type]
