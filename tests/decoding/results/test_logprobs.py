"""What is asked of log-probabilities, and what is answered."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Logprobs, TokenLogprob
from decodekit.decoding.results.logprobs import token_logprob

from ..sampling.by_definition import check_alike, logprob_of

VOCAB = 6
LOGIT = st.sampled_from((-math.inf, -30.0, -1.25, 0.0, 0.5, 0.5, 8.0))
# Something is possible.
ROW = st.lists(LOGIT, min_size=VOCAB, max_size=VOCAB).filter(lambda row: max(row) > -math.inf)


class TestLogprobs:
    def test_asks_for_little(self) -> None:
        """The chosen tokens alone, as the decoder had them."""
        assert Logprobs(0, "raw") == Logprobs()

    def test_takes_numbers_of_numpys(self) -> None:
        """They are whole numbers as well."""
        request = Logprobs(np.int64(3), np.int64(1))

        assert Logprobs(3, 1) == request
        assert [int, int] == [type(request.top), type(request.stage)]

    @pytest.mark.parametrize(
        ("parts", "error", "message"),
        [
            ({"top": -1}, ValueError, "'top' must be >= 0"),
            ({"top": True}, TypeError, "'top' must be a whole number: got True"),
            ({"top": 1.5}, TypeError, "'top' must be a whole number: got 1.5"),
            (
                {"stage": None},
                TypeError,
                "'stage' must be a stage's name or .*: got None",
            ),
            ({"stage": False}, TypeError, "'stage' must be a stage's name .*: got False"),
        ],
    )
    def test_refuses(self, parts: dict[str, Any], error: type[Exception], message: str) -> None:
        """At once."""
        with pytest.raises(error, match=message):
            Logprobs(**parts)


class TestTokenLogprob:
    @given(ROW, st.integers(0, VOCAB - 1), st.integers(0, VOCAB))
    def test_by_definition(self, row: list[float], token: int, top: int) -> None:
        """Ranks, ties and forbidden tokens included."""
        for dtype in (torch.float32, torch.float64):
            actual = token_logprob(torch.tensor(row, dtype=dtype), token, top)

            check_alike([logprob_of(token, row, top)], [actual])

    def test_in_the_head(self) -> None:
        """Of 1/2, 1/4, 1/8, 1/8 the last: two are likelier, and one is as likely."""
        answer = token_logprob(torch.tensor([0.5, 0.25, 0.125, 0.125]).log(), 3, 3)

        assert (3, 3) == (answer.id, answer.rank)
        assert [0, 1, 2] == [token for token, _ in answer.top]
        assert math.isclose(-math.log(8), answer.logprob, rel_tol=1e-7)

    def test_a_shift_does_not_matter(self) -> None:
        """Large logits are as good as small ones: the largest is taken off before anything is summed."""
        logits = torch.tensor([0.0, 1.0, 3.0])

        assert token_logprob(logits, 1, 3) == token_logprob(logits + 2.0**20, 1, 3)
        assert token_logprob(logits, 1, 3) == token_logprob(logits - 2.0**20, 1, 3)

    def test_the_number_of_threads_does_not_matter(self) -> None:
        """Bit for bit, and neither does where the logits lie."""
        logits = 4 * torch.randn(3, 90_001, generator=torch.Generator().manual_seed(0))
        threads = torch.get_num_threads()
        try:
            answers = []
            for number in (1, 2, 3):
                torch.set_num_threads(number)
                answers += [token_logprob(logits[1], 5, 3), token_logprob(logits[1].clone(), 5, 3)]
        finally:
            torch.set_num_threads(threads)

        assert [answers[0]] * 6 == answers

    def test_tells_small_probabilities(self) -> None:
        """One that single precision does not hold; the others' sum is not lost beside the largest."""
        answer = token_logprob(torch.tensor([0.0, -2000.0, -20.0]), 1, 1)
        normaliser = math.log1p(math.exp(-20))

        assert math.isclose(-2000 - normaliser, answer.logprob, rel_tol=1e-15)
        assert math.isclose(-normaliser, answer.top[0][1], rel_tol=1e-6)

    def test_forbidden_tokens(self) -> None:
        """They have no probability, also where nothing has one."""
        one, none = torch.tensor([0.0, -math.inf]), torch.tensor([-math.inf, -math.inf])

        assert TokenLogprob(1, -math.inf, 2, ((0, 0.0), (1, -math.inf))) == token_logprob(one, 1, 2)
        assert TokenLogprob(1, -math.inf, 1, ((0, -math.inf), (1, -math.inf))) == token_logprob(none, 1, 2)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_what_is_no_number(self, bad: float) -> None:
        """One leaves its column without probabilities, the forbidden tokens' excepted."""
        answer = token_logprob(torch.tensor([0.0, bad, -math.inf]), 0, 3)

        assert math.isnan(answer.logprob)
        assert {0: True, 1: True, 2: False} == {token: math.isnan(logprob) for token, logprob in answer.top}
        assert -math.inf == dict(answer.top)[2]

    def test_does_not_write(self) -> None:
        """The logits are the decoder's."""
        logits = torch.arange(4.0, dtype=torch.float64)
        token_logprob(logits, 2, 2)

        assert [0.0, 1.0, 2.0, 3.0] == logits.tolist()
