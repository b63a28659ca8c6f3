"""Slots of the history, and the logits of the tokens in them."""

import pytest
import torch

from decodekit.decoding.history import History
from decodekit.processors.numerics.token_occurrences import (
    apply_to_tokens,
    count_tokens,
    largest_per_token,
    last_tokens,
    match_lengths,
    prompt_slots,
    seen_slots,
    sequence_ends,
)

from ..by_hand import after

ONES = torch.ones(1, 1, 4)


class TestApplyToTokens:
    def test_applies_the_formula_once_to_each_token(self) -> None:
        """A token that occurs three times is changed once."""
        history = after([2, 2, 2, 1])

        rewritten = apply_to_tokens(ONES, history, history.valid(), lambda seen: seen + 5)

        assert [1.0, 6.0, 6.0, 1.0] == rewritten[0, 0].tolist()

    def test_changes_nothing_where_no_slot_counts(self) -> None:
        """Not even token 0, at which the idle slots point."""
        history = after([0, 0])

        assert torch.equal(ONES, apply_to_tokens(ONES, history, history.valid() & False, lambda x: x + 5))

    def test_passes_over_ids_without_a_logit(self) -> None:
        """An embedding may know more ids than the head scores."""
        history = after([9, 3, 4])

        rewritten = apply_to_tokens(ONES, history, history.valid(), lambda seen: seen + 5)

        assert [1.0, 1.0, 1.0, 6.0] == rewritten[0, 0].tolist()

    def test_follows_each_columns_own_path(self) -> None:
        """In a tree, column i lies on path i."""
        history = History(
            torch.tensor([[[1], [2]]]), torch.ones(1, 2).long(), torch.zeros(1).long(), torch.zeros(1)
        )

        rewritten = apply_to_tokens(torch.zeros(1, 2, 3), history, history.valid(), lambda seen: seen + 1)

        assert [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] == rewritten[0].tolist()


class TestCountTokens:
    def test_counts_each_token(self) -> None:
        """Ids without a logit are passed over."""
        history = after([2, 9, 2, 1])

        assert [0.0, 1.0, 2.0, 0.0] == count_tokens(ONES, history, history.valid())[0, 0].tolist()


class TestSeenSlots:
    def test_leaves_the_prompt_out_or_in(self) -> None:
        """Two of three tokens are prompt; the fourth slot holds none."""
        history = after([5, 6, 7], prompt=2)

        assert [True, True, True, False] == seen_slots(history, ONES, True, None)[0, 0].tolist()
        assert [False, False, True, False] == seen_slots(history, ONES, False, None)[0, 0].tolist()

    def test_looks_back_as_far_as_the_window(self) -> None:
        """What it reaches of the prompt has to be included."""
        history = after([5, 6, 7], prompt=2)

        assert [False, True, True, False] == seen_slots(history, ONES, True, 2)[0, 0].tolist()
        assert [False, False, True, False] == seen_slots(history, ONES, False, 2)[0, 0].tolist()
        assert [True, True, True, False] == seen_slots(history, ONES, True, torch.tensor([9]))[0, 0].tolist()

    def test_refuses_windows_of_another_batch(self) -> None:
        """One for each row."""
        with pytest.raises(ValueError, match="'window' must have one value per row: got 2 for 1 rows"):
            seen_slots(after([1]), ONES, True, torch.tensor([1, 2]))


class TestPromptSlots:
    def test_marks_the_prompts_slots(self) -> None:
        """The complement of what was generated."""
        assert [True, False, False] == prompt_slots(after([5, 6], prompt=1))[0, 0].tolist()


class TestLastTokens:
    def test_is_the_last_tokens(self) -> None:
        """The newest last, and -1 in front of the first."""
        history = after([5, 6, 7])

        assert [6, 7] == last_tokens(history.ids, history, 2)[0, 0].tolist()
        assert [-1, 5, 6, 7] == last_tokens(history.ids, history, 4)[0, 0].tolist()

    def test_of_none_is_empty(self) -> None:
        """A sequence of one token has nothing before it."""
        assert [] == last_tokens(after([5]).ids, after([5]), 0)[0, 0].tolist()


class TestSequenceEnds:
    def test_is_where_a_sequence_is_complete(self) -> None:
        """Occurrences may overlap; before the first slot there is nothing."""
        ids = torch.tensor([1, 1, 1, 2, 1])

        assert [False, True, True, False, False] == sequence_ends([1, 1], ids[None, None])[0, 0].tolist()
        assert [False, False, False, True, False] == sequence_ends([2], ids[None, None])[0, 0].tolist()


class TestMatchLengths:
    def test_is_how_many_tokens_are_the_last_ones(self) -> None:
        """In front of the second 3 stands 2 3 1 2, and so it does at the end."""
        history = after([2, 3, 1, 2, 3, 1, 2])

        assert [0, 1, 0, 0, 4, 0, 0, 0] == match_lengths(history, history.valid(), 9)[0, 0].tolist()

    def test_stops_counting(self) -> None:
        """A longer match is as long."""
        history = after([2, 3, 1, 2, 3, 1, 2])

        assert [0, 1, 0, 0, 2, 0, 0, 0] == match_lengths(history, history.valid(), 2)[0, 0].tolist()

    def test_goes_across_nothing_that_does_not_count(self) -> None:
        """Neither in front of the slot nor in front of the column."""
        history = after([2, 3, 1, 2, 3, 1, 2])

        for slot in (2, 5):
            counting = history.valid() & (torch.arange(8) != slot)
            assert [0, 1, 0, 0, 1, 0, 0, 0] == match_lengths(history, counting, 9)[0, 0].tolist()


class TestLargestPerToken:
    def test_is_the_largest_of_each_token(self) -> None:
        """Slots that do not count give nothing, and ids without a logit neither."""
        history = after([2, 1, 2, 9, 1])
        slots = history.valid() & (torch.arange(6) != 4)
        values = torch.tensor([[[3.0, 1.0, 2.0, 8.0, 7.0, 9.0]]])

        assert [0.0, 1.0, 3.0, 0.0] == largest_per_token(ONES, history, slots, values)[0, 0].tolist()
