"""The end-of-sequence token."""

import pytest

from decodekit.decoding import EndOfSequence, Finish


class TestEndOfSequence:
    def test_end_of_sequence_is_named_as_such(self) -> None:
        """The model's own end is distinguished from the caller's stop tokens."""
        assert (Finish("end_of_sequence", 2),) == EndOfSequence(2).finishes

    @pytest.mark.parametrize(
        ("ids", "error"),
        [(None, TypeError), ([], TypeError), ([True], TypeError), ("a", TypeError), (-1, ValueError)],
    )
    def test_must_be_ids(self, ids: object, error: type[Exception]) -> None:
        """A tokenizer without an end-of-sequence token gives None: refused, not ignored."""
        with pytest.raises(error, match="'ids' must be"):
            EndOfSequence(ids)  # type: ignore[arg-type]
