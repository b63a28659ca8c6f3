"""Events."""

import json
import math

from decodekit.decoding import Event, Finish, TokenLogprob


class TestFinishReason:
    def test_is_the_reason_of_the_finish(self) -> None:
        """None while the row goes on."""
        assert Event(0, (5,)).finish_reason is None
        assert "stop_token" == Event(0, (5,), finish=Finish("stop_token", 5)).finish_reason


class TestAsDict:
    """As JSON."""

    def test_what_is_not_set_is_left_out(self) -> None:
        """Without a tokenizer, in the middle of a row."""
        assert {"row": 2, "ids": [5]} == Event(2, (5,)).as_dict()

    def test_everything_survives_json(self) -> None:
        """Even a forbidden token's log-probability, as null."""
        logprob = TokenLogprob(5, -math.inf, 3, ((7, -0.5), (8, -1.5)))
        event = Event(0, (5,), "é", Finish("max_new_tokens"), (logprob,))

        expected = {
            "row": 0,
            "ids": [5],
            "text": "é",
            "finish": {"reason": "max_new_tokens"},
            "logprobs": [{"id": 5, "logprob": None, "rank": 3, "top": [[7, -0.5], [8, -1.5]]}],
        }
        assert expected == json.loads(json.dumps(event.as_dict(), allow_nan=False))
