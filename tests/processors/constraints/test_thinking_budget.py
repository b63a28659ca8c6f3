"""Token limit for thinking sections."""

import pytest
import torch

from decodekit.processors import ThinkingBudget

from ..by_hand import after, kept

START, END, WORD, OTHER = 0, 1, 2, 3
LONG_END = (OTHER, OTHER, END)
EQUAL = [0.25] * 4
ANY = [0, 1, 2, 3]


class TestABudget:
    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            pytest.param([], ANY, id="nothing-said"),
            pytest.param([WORD, WORD, WORD, WORD], ANY, id="no-section"),
            pytest.param([START], ANY, id="just-opened"),
            pytest.param([START, WORD], ANY, id="one-left"),
            pytest.param([START, WORD, WORD], [END], id="spent"),
            pytest.param([START, WORD, WORD, WORD], [END], id="overdrawn-before-it-applied"),
            pytest.param([START, WORD, WORD, END], ANY, id="closed"),
            pytest.param([START, WORD, WORD, END, WORD, WORD, WORD], ANY, id="left-alone-once-closed"),
            pytest.param([START, WORD, END, START, WORD], ANY, id="a-budget-of-its-own"),
            pytest.param([START, WORD, END, START, WORD, WORD], [END], id="spent-again"),
            # A model that opens a section within a section gains nothing.
            pytest.param([START, WORD, START], [END], id="opened-within"),
            pytest.param([END, START, WORD, WORD], [END], id="closed-before-it-was-opened"),
        ],
    )
    def test_closes_the_section_when_it_is_spent(self, ids: list[int], expected: list[int]) -> None:
        """Two tokens may be thought."""
        assert expected == kept(ThinkingBudget(2, START, END), EQUAL, after(ids))

    def test_of_0_closes_at_once(self) -> None:
        """The first token of the section is its end."""
        assert [END] == kept(ThinkingBudget(0, START, END), EQUAL, after([START]))

    @pytest.mark.parametrize("unlimited", [None, -1, [-1]])
    def test_may_be_unlimited(self, unlimited: int | list[int] | None) -> None:
        """None, or -1, as elsewhere."""
        assert ANY == kept(ThinkingBudget(unlimited, START, END), EQUAL, after([START, WORD, WORD]))

    def test_counts_what_the_prompt_has_of_the_section(self) -> None:
        """A chat template may open the section, and a caller may think ahead."""
        history = after([START, WORD, WORD], prompt=3)

        assert [END] == kept(ThinkingBudget(2, START, END), EQUAL, history)
        assert ANY == kept(ThinkingBudget(3, START, END), EQUAL, history)

    def test_may_be_one_per_row(self) -> None:
        """Rows do not share it."""
        history = after([START, WORD]).rows(torch.tensor([0, 0, 0]))

        processed = ThinkingBudget([1, 2, -1], START, END)(torch.zeros(3, 1, 4), history)

        assert [1, 4, 4] == (processed > -torch.inf).sum(dim=-1)[:, 0].tolist()


class TestAnEndOfSeveralTokens:
    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            pytest.param([START, WORD], [OTHER], id="begins"),
            pytest.param([START, WORD, OTHER], [OTHER], id="goes-on"),
            pytest.param([START, WORD, OTHER, OTHER], [END], id="finishes"),
            pytest.param([START, WORD, OTHER, OTHER, END], ANY, id="is-done"),
            # The model had begun by itself when the budget ran out.
            pytest.param([START, OTHER], [OTHER], id="carries-on-what-had-begun"),
            pytest.param([START, WORD, OTHER, WORD], [OTHER], id="begins-anew-after-a-start-that-failed"),
            # The last two of three are a beginning.
            pytest.param([START, OTHER, OTHER, OTHER], [END], id="longest-beginning"),
        ],
    )
    def test_is_forced_token_by_token(self, ids: list[int], expected: list[int]) -> None:
        """Tokens of it that were generated already are not repeated."""
        assert expected == kept(ThinkingBudget(1, START, LONG_END), EQUAL, after(ids))

    def test_does_not_begin_before_its_section(self) -> None:
        """The last token of the start is no part of the end, equal though it is."""
        budget = ThinkingBudget(0, [START, OTHER], [OTHER, END])

        assert [OTHER] == kept(budget, EQUAL, after([START, OTHER]))

    @pytest.mark.parametrize("budget", range(4))
    def test_is_reached_whatever_the_model_wants(self, budget: int) -> None:
        """Also for a model that always generates the same token."""
        processor = ThinkingBudget(budget, START, LONG_END)
        ids = [START]
        for _ in range(budget + len(LONG_END)):
            allowed = kept(processor, EQUAL, after(ids))
            ids.append(WORD if WORD in allowed else allowed[0])

        assert [START] + [WORD] * budget + list(LONG_END) == ids
        assert ANY == kept(processor, EQUAL, after(ids))


class TestWhatIsRefused:
    def test_a_start_that_is_the_end(self) -> None:
        """The two would be indistinguishable."""
        with pytest.raises(ValueError, match="'start' and 'end' must differ: got"):
            ThinkingBudget(3, 1, [1])

    def test_an_empty_sequence(self) -> None:
        """It would stand everywhere."""
        with pytest.raises(ValueError, match="'start' must name at least one token id"):
            ThinkingBudget(3, [], 1)

    def test_a_budget_below_minus_1(self) -> None:
        """-1 is unlimited, and nothing lies below."""
        with pytest.raises(ValueError, match="'budget' must be >= -1"):
            ThinkingBudget(-2, 0, 1)

    def test_an_end_beyond_the_vocabulary(self) -> None:
        """Known only when the logits come."""
        with pytest.raises(ValueError, match="token ids must be < 4"):
            kept(ThinkingBudget(1, 0, [9, 1]), EQUAL, after([0]))
