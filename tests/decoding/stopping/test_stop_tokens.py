"""Stop tokens."""

from decodekit.decoding import Finish, StopTokens

from .condition_codes import codes


class TestStopTokens:
    def test_says_which(self) -> None:
        """The code tells which token ended the row."""
        stop = StopTokens([4, 7])

        assert [[0, 2, 0, 1]] == codes(stop, [[9, 1, 7, 2, 4]])
        assert (Finish("stop_token", 4), Finish("stop_token", 7)) == stop.finishes
