"""Effect of each stage on the distribution."""

import math

import pytest
import torch
from torch import Tensor

from decodekit.decoding.history import History
from decodekit.decoding.protocols import Processor
from decodekit.processors import (
    Chain,
    FrequencyPenalty,
    LogitBias,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
    explain,
)
from decodekit.processors.explanation import Change, Column

from .by_hand import NOTHING, after

PROBS = [0.125, 0.5, 0.25, 0.0625, 0.0625]


class Letters:
    """A tokenizer of five tokens, one of them a trap for HTML."""

    def decode(self, token_ids: list[int]) -> str:
        (token,) = token_ids
        return ["a", "<b>", " c", "\n", "e"][token]


def column(chain: Processor, probs: list[float], history: History = NOTHING, examples: int = 3) -> Column:
    """The explanation of one column."""
    (only,) = explain(chain, torch.tensor([[probs]]).log(), history, examples=examples).columns
    return only


def garbage(*values: float) -> Column:
    """What is said of logits that may be anything."""
    (only,) = explain(Temperature(0.5) | TopK(1), torch.tensor([[values]]), NOTHING).columns
    return only


def rounded(changes: tuple[Change, ...]) -> list[tuple[int, float, float]]:
    """Tokens and probabilities, to six places."""
    return [(change.token, round(change.before, 6), round(change.after, 6)) for change in changes]


class TestWhatAStageRemoves:
    def test_lists_removed_tokens_by_probability(self) -> None:
        """Three of five go, and with them a quarter of the mass."""
        (stage,) = column(TopK(2), PROBS).stages

        assert repr(TopK(2)) == stage.name
        assert (2, 3) == (stage.left, stage.removed)
        assert [(0, 0.125, 0.0), (3, 0.0625, 0.0), (4, 0.0625, 0.0)] == rounded(stage.examples)
        assert 0.75 == pytest.approx(stage.mass_kept)

    def test_is_named_up_to_a_number(self) -> None:
        """The count goes on."""
        (stage,) = column(TopK(2), PROBS, examples=1).stages

        assert 3 == stage.removed
        assert [0] == [change.token for change in stage.examples]

    def test_is_measured_by_what_the_stages_before_left(self) -> None:
        """Of 2/3 and 1/3, top-p keeps the first."""
        first, second = column(TopK(2) | TopP(0.6), PROBS).stages

        assert (3, 1) == (first.removed, second.removed)
        assert 2 / 3 == pytest.approx(second.mass_kept)
        assert [(2, round(1 / 3, 6), 0.0)] == rounded(second.examples)

    def test_is_nothing_twice(self) -> None:
        """Tokens masked before are not counted again."""
        _, second = column(TopK(2) | SuppressTokens([0]), PROBS).stages

        assert (0, ()) == (second.removed, second.examples)


class TestWhatAStageMoves:
    def test_is_no_filter_growing_into_what_it_removed(self) -> None:
        """The survivors' probabilities rise, but not relative to each other."""
        (stage,) = column(TopK(2), PROBS).stages

        assert (0, ()) == (stage.moved, stage.movements)

    def test_is_no_shift(self) -> None:
        """A constant added to every logit does not change the distribution."""
        assert 0 == column(LogitBias({0: 5.0, 1: 5.0}), [0.75, 0.25]).stages[0].moved

    def test_is_named_from_the_largest_change_down(self) -> None:
        """Squared and brought to a sum of one: 1, 16, 4 of 21."""
        (stage,) = column(Temperature(0.5), [0.25, 0.25, 0.5]).stages

        assert 3 == stage.moved
        assert [(2, 0.5, round(4 / 6, 6)), (0, 0.25, round(1 / 6, 6)), (1, 0.25, round(1 / 6, 6))] == rounded(
            stage.movements
        )

    def test_counts_the_tokens_that_a_penalty_hits(self) -> None:
        """The others' share changes, their logits do not."""
        (stage,) = column(FrequencyPenalty(1.0), [0.25, 0.25, 0.5], after([2, 2])).stages

        assert 1 == stage.moved
        assert [2] == [change.token for change in stage.movements]

    def test_is_compared_among_what_is_left(self) -> None:
        """A stage may remove and move: of 1/2 and 1/2, doubling the odds of one makes 2/3."""
        (stage,) = column(LogitBias({0: math.log(2.0), 2: -math.inf}), [0.25, 0.25, 0.5]).stages

        assert [(0, 0.5, round(2 / 3, 6))] == rounded(stage.movements)
        assert (1, 1) == (stage.removed, stage.moved)

    def test_may_be_a_token_that_was_forbidden(self) -> None:
        """A processor that forces a token raises it from probability 0."""

        def force(logits: Tensor, history: History) -> Tensor:
            return torch.tensor([0.0, -torch.inf, -torch.inf]).expand_as(logits)

        (stage,) = column(force, [0.0, 0.5, 0.5]).stages

        assert (1, 2, 1) == (stage.left, stage.removed, stage.moved)
        assert 0.0 == stage.mass_kept


class TestTheWhole:
    def test_knows_the_entropy_between_stages(self) -> None:
        """Four equal tokens have log 4, two of them log 2."""
        explained = column(TopK(4) | LogitBias({0: -math.inf, 1: -math.inf}), [0.25] * 4)

        assert math.log(4) == pytest.approx(explained.entropy)
        assert [math.log(4), math.log(4)] == pytest.approx([s.entropy_before for s in explained.stages])
        assert [math.log(4), math.log(2)] == pytest.approx([s.entropy_after for s in explained.stages])

    def test_ends_with_the_top_tokens(self) -> None:
        """With their probability as the logits came."""
        assert [(1, 0.5, round(2 / 3, 6)), (2, 0.25, round(1 / 3, 6))] == rounded(
            column(TopK(2), PROBS).top_tokens
        )

    def test_has_a_part_for_each_column(self) -> None:
        """Row by row; each its own figures."""
        logits = torch.tensor([[[0.5, 0.5], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]]]).log()
        history = History(
            torch.zeros(2, 1, 2).long(), torch.tensor([[0, 1]] * 2), torch.zeros(2).long(), torch.arange(2)
        )

        explained = explain(TopK(1), logits, history)

        assert [(0, 0), (0, 1), (1, 0), (1, 1)] == [(part.row, part.column) for part in explained.columns]
        assert [1.0, 0.75, 1.0, 1.0] == pytest.approx(
            [part.stages[0].mass_kept for part in explained.columns]
        )
        assert 4 == str(explained).count("TopK(k=1")

    def test_takes_a_processor_alone_and_an_empty_chain(self) -> None:
        """One stage, and none."""
        assert [1, 0] == [len(column(chain, PROBS).stages) for chain in (TopK(1), Chain())]

    def test_does_not_touch_the_logits(self) -> None:
        """The caller's logits are not modified."""
        logits = torch.tensor([[PROBS]])

        explain(Temperature(0.5) | TopK(1), logits, NOTHING)

        assert torch.equal(torch.tensor([[PROBS]]), logits)


class TestNoDistribution:
    def test_names_the_stage_that_left_nothing(self) -> None:
        """The first of them; later ones find nothing."""
        explained = column(TopK(1) | SuppressTokens([1]) | TopK(2), PROBS)

        assert "SuppressTokens(ids=(1,))" == explained.emptied_by
        assert ["", "no token left", "no token left"] == [stage.trouble for stage in explained.stages]
        assert (0.0, ()) == (explained.stages[1].mass_kept, explained.top_tokens)
        assert "no token is left after SuppressTokens(ids=(1,))" in str(explained.table().text())

    def test_may_be_the_decoders_doing(self) -> None:
        """Before any stage."""
        explained = garbage(-math.inf, -math.inf)

        assert ("no token left", "the decoder") == (explained.trouble, explained.emptied_by)

    @pytest.mark.parametrize(
        ("values", "trouble"),
        [
            pytest.param([math.nan, 1.0, math.nan], "2 NaN", id="nan"),
            pytest.param([math.inf, 1.0, -math.inf], "1 +inf", id="infinity"),
            pytest.param([math.nan, math.inf, 0.0], "1 NaN and 1 +inf", id="both"),
            pytest.param([math.nan] * 3, "3 NaN", id="nan-alone"),
        ],
    )
    def test_is_said_and_no_error(self, values: list[float], trouble: str) -> None:
        """Figures that do not exist are NaN, and a dash in the table."""
        explained = garbage(*values)

        assert trouble == explained.trouble
        assert trouble == explained.stages[0].trouble
        assert explained.emptied_by is None
        assert math.isnan(explained.entropy)
        assert math.isnan(explained.stages[0].mass_kept)
        assert math.isnan(explained.stages[0].entropy_after)
        assert "  -  " in explained.table().text()
        assert "in the end: no distribution" in explained.table().text()

    def test_may_begin_in_the_middle(self) -> None:
        """The stage whose result is NaN is the first that says so."""

        def broken(logits: Tensor, history: History) -> Tensor:
            return logits * torch.nan

        assert ["", "5 NaN"] == [stage.trouble for stage in column(TopK(5) | Chain((broken,)), PROBS).stages]


class TestShown:
    def test_in_a_terminal(self) -> None:
        """Aligned columns: what was removed, what was moved, what is left."""
        explained = explain(
            Temperature(0.5) | TopK(1),
            torch.tensor([[[0.25, 0.25, 0.5]]]).log(),
            NOTHING,
            Letters(),
            examples=2,
        )

        assert [
            "row 0, column 0: entropy 1.040 nats",
            "stage                         left  mass kept  entropy"
            "  removed  likeliest of them           moved  farthest of them",
            "Temperature(temperature=0.5)     3    100.00%    0.868"
            "        0                                  3  2 ' c' 50.0% → 66.7%, 0 'a' 25.0% → 16.7%, ...",
            "TopK(k=1, ties='keep')           1     66.67%    0.000"
            "        2  0 'a' 16.7%, 1 '<b>' 16.7%      0",
            "in the end: 2 ' c' 50.0% → 100.0%",
        ] == str(explained).splitlines()

    def test_in_a_notebook(self) -> None:
        """A table whose every cell is escaped."""
        explained = explain(TopK(1), torch.tensor([[[0.25, 0.25, 0.5]]]).log(), NOTHING, Letters())

        page = explained._repr_html_()

        assert 1 == page.count("<table>") == page.count("</table>")
        assert "&#x27;&lt;b&gt;&#x27; 25.0%" in page
        assert "<b>" not in page

    def test_without_a_tokenizer_tokens_are_numbers(self) -> None:
        """Ids and probabilities."""
        assert "in the end: 1 50.0% → 100.0%" in column(TopK(1), PROBS).table().text()

    def test_long_names_are_shortened_in_the_table_alone(self) -> None:
        """A bias of a thousand tokens does not push the figures off the screen."""
        explained = column(SuppressTokens(range(3)), PROBS)
        long = column(LogitBias(dict.fromkeys(range(5), 0.5)), PROBS)

        assert "SuppressTokens(ids=(0, 1, 2))" in explained.table().text()
        assert "4: 0.5" in long.stages[0].name
        assert "4: 0.5" not in long.table().text()
