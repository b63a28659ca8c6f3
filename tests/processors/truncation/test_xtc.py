"""XTC: exclude top choices."""

import attrs
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from decodekit.decoding.history import History
from decodekit.decoding.sampling import noise
from decodekit.processors import XTC

from ...strategies import windows
from ..by_hand import kept

PROBS = [0.15, 0.5, 0.05, 0.3]
HALVED = [0.125, 0.5, 0.25, 0.125]


class TestTopChoices:
    @pytest.mark.parametrize(
        ("threshold", "expected"),
        [
            pytest.param(0.01, [2], id="all-are-top-choices"),
            pytest.param(0.1, [0, 2], id="three-are"),
            pytest.param(0.2, [0, 2, 3], id="two-are"),
            pytest.param(0.4, [0, 1, 2, 3], id="one-is"),
            pytest.param([0.1], [0, 2], id="per-row"),
        ],
    )
    def test_go_but_for_the_least_likely(self, threshold: float | list[float], expected: list[int]) -> None:
        """One that is likely enough stays, and all that are not likely enough."""
        assert expected == kept(XTC(1.0, threshold), PROBS)

    def test_include_what_meets_the_threshold(self) -> None:
        """A quarter is at least a quarter."""
        assert [0, 2, 3] == kept(XTC(1.0, 0.25), HALVED)
        assert [0, 1] == kept(XTC(1.0, 0.5), [0.5, 0.5])

    def test_that_tie_with_the_least_likely_stay(self) -> None:
        """Equal tokens stay or go together."""
        assert [0, 3] == kept(XTC(1.0, 0.125), HALVED)

    def test_may_be_none(self) -> None:
        """Where nothing is likely enough, nothing goes."""
        assert [0, 1, 2] == kept(XTC(1.0, 0.5), [0.3, 0.4, 0.3])

    @pytest.mark.parametrize(
        ("keep", "expected"),
        [
            pytest.param([1], [0, 1, 2, 3], id="one-that-would-go-holds-all"),
            pytest.param([2, 3], [0, 1, 2, 3], id="one-of-two-would-go"),
            pytest.param([0], [0, 2], id="the-least-likely-stays-anyway"),
            pytest.param([2], [0, 2], id="the-unlikely-stays-anyway"),
            pytest.param(0, [0, 2], id="one-id"),
        ],
    )
    def test_stay_all_if_one_to_keep_would_go(self, keep: int | list[int], expected: list[int]) -> None:
        """One of several kept alone would win what the others lose."""
        assert expected == kept(XTC(1.0, 0.1, keep=keep), PROBS)

    def test_cannot_keep_what_has_no_logit(self) -> None:
        """As everywhere, an id beyond the vocabulary is a mistake."""
        with pytest.raises(ValueError, match="token ids must be < 4, the size of the vocabulary: got 7"):
            kept(XTC(1.0, 0.1, keep=[7]), PROBS)


def many(rows: int, width: int) -> tuple[Tensor, History]:
    """Two tokens that are equally likely but for a hair, everywhere."""
    logits = torch.tensor([0.0, 1e-3]).expand(rows, width, 2)
    length = torch.arange(1, width + 1).expand(rows, width)
    ids = torch.zeros(rows, 1, width, dtype=torch.int64)
    stream = noise.random_streams(torch.arange(rows), seed=0)
    return logits, History(ids, length, torch.zeros(rows, dtype=torch.int64), stream)


class TestTheCoin:
    def test_is_the_counter_noise(self) -> None:
        """Of the row's stream and the position, for this purpose: no other number will do."""
        logits, history = many(50, 40)
        coin = noise.uniform(
            history.random_stream[:, None], history.length, noise.XTC, torch.zeros(1, dtype=torch.int64)
        )

        acted = XTC(0.3, 0.1)(logits, history)[..., 1] == -torch.inf

        assert torch.equal(coin < 0.3, acted)

    def test_falls_as_often_as_it_should(self) -> None:
        """Within 5 standard deviations of the binomial: a chance of 6e-7."""
        rows, width, q = 100, 200, 0.3
        logits, history = many(rows, width)

        share = (XTC(q, 0.1)(logits, history)[..., 1] == -torch.inf).double().mean()

        assert abs(share.item() - q) < 5 * (q * (1 - q) / (rows * width)) ** 0.5

    def test_is_each_rows_own_probability(self) -> None:
        """Never, sometimes and always in one batch."""
        logits, history = many(3, 200)

        acted = XTC([0.0, 0.5, 1.0], 0.1)(logits, history)[..., 1] == -torch.inf

        assert 0 == acted[0].sum()
        assert 0 < acted[1].sum() < 200
        assert 200 == acted[2].sum()

    @settings(deadline=None)
    @given(windows(), st.floats(0.0, 1.0))
    def test_is_the_same_for_a_draft_and_in_a_window(
        self, window: tuple[Tensor, History], probability: float
    ) -> None:
        """A column of a window is a step of its own, whatever the other rows and the tokens are."""
        logits, history = window
        processor = XTC(probability, 0.05)

        together = processor(logits, history)

        for row in range(logits.shape[0]):
            for column in range(logits.shape[1]):
                step = History(
                    torch.zeros(1, 1, 20, dtype=torch.int64),
                    history.length[row, column].reshape(1, 1),
                    torch.zeros(1, dtype=torch.int64),
                    history.random_stream[row : row + 1],
                )
                alone = processor(logits[row, column][None, None], step)
                assert torch.equal(alone[0, 0], together[row, column])

    def test_differs_between_streams_and_positions(self) -> None:
        """Rows do not act in step, and a row does not act forever."""
        logits, history = many(20, 20)

        acted = XTC(0.5, 0.1)(logits, history)[..., 1] == -torch.inf

        assert (acted != acted[:1]).any(dim=1)[1:].all()
        assert (acted != acted[:, :1]).any(dim=0)[1:].all()


class TestXTC:
    def test_is_local_unless_it_keeps_tokens(self) -> None:
        """To keep a token it has to know which one that is."""
        assert XTC(0.5, 0.1).local
        assert not XTC(0.5, 0.1, keep=[1]).local

    @pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan"), [0.5, 2.0]])
    def test_refuses_what_is_no_probability(self, probability: float | list[float]) -> None:
        """0 is off, 1 is always."""
        with pytest.raises(ValueError, match=r"'probability' must be in \[0, 1\].*: got "):
            XTC(probability, 0.1)

    @pytest.mark.parametrize("threshold", [0.0, 0.51, float("nan"), [0.1, 0.0]])
    def test_refuses_a_threshold_that_never_or_always_counts(self, threshold: float | list[float]) -> None:
        """No two tokens are more likely than a half, and all are at least 0."""
        with pytest.raises(ValueError, match=r"'threshold' must be in \(0, 0.5\].*: got "):
            XTC(0.5, threshold)

    def test_prints_as_it_was_written(self) -> None:
        """The representation is the call, without what is kept for speed."""
        assert "XTC(probability=0.5, threshold=0.1, keep=(2, 9))" == repr(XTC(0.5, 0.1, keep=[9, 2]))

    def test_may_be_changed_as_a_whole(self) -> None:
        """What is kept for speed follows."""
        assert [0, 2] == kept(attrs.evolve(XTC(1.0, 0.1, keep=[1]), keep=()), PROBS)
