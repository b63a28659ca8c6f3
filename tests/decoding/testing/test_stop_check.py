"""The contract checks of a stop condition."""

import pytest
import torch

from decodekit.decoding import EndOfSequence, Finish, MaxNewTokens, StopTokens, has_short_cuts
from decodekit.testing import check_stop

from ..stopping.test_stop_conditions import CONDITIONS, IN_ORDER


class Wrong:
    """A condition of one finish."""

    finishes = (Finish("wrong"),)

    def __init__(self, codes):
        self.codes = codes
        self.calls = 0

    def __call__(self, scores, history):
        self.calls += 1
        return self.codes(self, scores, history)


def write_scores(self, scores, history):
    """In place."""
    scores.logits[:] = 0
    return torch.zeros_like(history.length)


def write_history(self, scores, history):
    """In place."""
    history.length[:] = 0
    return torch.zeros_like(history.length)


def neighbours(self, scores, history):
    """The prompts of all rows decide."""
    return torch.zeros_like(history.length) + history.prompt.sum() % 2


@has_short_cuts
class OtherShortCut(Wrong):
    """A short cut that never ends a row."""

    def by_token(self):
        return lambda token, length, prompt, row: 0


@has_short_cuts
class OtherLimit(Wrong):
    """Says that rows have at most two new tokens."""

    def most_new_tokens(self):
        return lambda prompt, row: 2


def by_number(self, scores, history):
    """Ends a row after 3 new tokens."""
    return (history.num_generated() >= 3).long()


def zeros(history):
    """No code."""
    return torch.zeros_like(history.length)


WRONG = {
    "calls": (Wrong(lambda self, s, h: zeros(h) + self.calls % 2), "one or several at a time: fed"),
    "asked": (Wrong(lambda self, s, h: zeros(h) + int(self.calls > 40)), "how often it is asked for"),
    "width": (
        Wrong(lambda self, s, h: zeros(h) + int(h.length.shape[1] > 1)),
        "one or several at a time: fed",
    ),
    "neighbours": (Wrong(neighbours), "not depend on its neighbours: fed row .* came: codes"),
    "scores": (Wrong(write_scores), "must not write into the scores: fed"),
    "history": (Wrong(write_history), "must not write into its history: fed .* came: history.length"),
    "code": (Wrong(lambda self, s, h: zeros(h) + 2), r"must return codes 0 to 1.*came: .*2"),
    "negative": (Wrong(lambda self, s, h: zeros(h) - 1), "must return codes 0 to 1"),
    "bool": (Wrong(lambda self, s, h: zeros(h).bool()), "came: torch.bool"),
    "shape": (Wrong(lambda self, s, h: zeros(h)[:, 0]), "must return codes"),
    "list": (Wrong(lambda self, s, h: zeros(h).tolist()), "must return codes"),
    "limit": (OtherLimit(by_number), r"most_new_tokens\(\) must be .*: fed row .*; came: 2"),
    "no limit": (OtherLimit(lambda self, s, h: zeros(h)), r"most_new_tokens\(\) must be"),
    "short cut": (OtherShortCut(by_number), r"by_token\(\) must give the codes of a call: fed"),
}


class TestCheckStop:
    @pytest.mark.parametrize(
        "make", {**CONDITIONS, **IN_ORDER}.values(), ids={**CONDITIONS, **IN_ORDER}.keys()
    )
    def test_passes_every_condition(self, make) -> None:
        """Also those that need a row's tokens in order."""
        check_stop(make(), vocab_size=8)

    def test_passes_compositions_and_limits_of_rows(self) -> None:
        """As a generation has them."""
        check_stop(
            MaxNewTokens([2, 5, 9]) | (EndOfSequence(40) & StopTokens([40, 3])),
            vocab_size=50,
            tokens=[40, 3, 7],
        )

    @pytest.mark.parametrize(("stop", "message"), WRONG.values(), ids=WRONG.keys())
    def test_finds_a_broken_rule(self, stop, message: str) -> None:
        """And says what was fed, what came, and the rule."""
        with pytest.raises(AssertionError, match=rf"(?s){message}"):
            check_stop(stop)

    def test_finds_what_depends_on_how_often_it_is_asked(self) -> None:
        """A limit that counts its calls, begun for each run."""

        class Calls(Wrong):
            def begin(self):
                return Calls(self.codes)

        counts = Calls(lambda self, scores, history: zeros(history) + int(self.calls >= 7))
        with pytest.raises(AssertionError, match=r"one or several at a time|how often it is asked for"):
            check_stop(counts)

    def test_refuses_wrong_arguments(self) -> None:
        """Before anything is called."""
        with pytest.raises(TypeError, match="'stop' must have finishes"):
            check_stop(lambda scores, history: zeros(history))
        with pytest.raises(ValueError, match="'tokens' must be ids below 16"):
            check_stop(EndOfSequence(1), tokens=[16])
        with pytest.raises(ValueError, match="for each of the 3 rows"):
            check_stop(MaxNewTokens([2, 5]))
