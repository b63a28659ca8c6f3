"""Where beams end."""

import pytest

from decodekit.decoding import EndOfSequence, Finish, MaxLength, MaxNewTokens, StopTokens
from decodekit.decoding.strategies.beams.beam import Beam
from decodekit.decoding.strategies.beams.beam_stop import BeamStop

STOP = BeamStop(EndOfSequence([2, 3]) | (MaxLength([9, 4, 30]) | StopTokens([3, 5])) | MaxNewTokens(6))


def test_end_tokens_are_collected() -> None:
    """From all conditions, once each."""
    assert {2, 3, 5} == STOP.end_tokens
    assert frozenset() == BeamStop(MaxNewTokens(3)).end_tokens


@pytest.mark.parametrize(("row", "length", "most"), [(0, 5, 4), (1, 5, 1), (2, 5, 6), (2, 28, 2), (2, 40, 1)])
def test_the_smallest_limit_counts(row: int, length: int, most: int) -> None:
    """The prompt's own, or the decoder's positions and one token more; at least one new token."""
    assert most == STOP.of_prompt(row, length, 40).most


def test_the_first_condition_names_the_end() -> None:
    """At one token, in order; the decoder's limit is the last."""
    stop = STOP.of_prompt(0, 5, 7)
    one, two = Beam.empty().extended(4, -1.0), Beam.empty().extended(4, -1.0).extended(4, -1.0)

    assert stop(one) is None
    assert Finish("end_of_sequence", 3) == stop(one.extended(3, -1.0))
    assert Finish("stop_token", 5) == stop(one.extended(5, -1.0))
    assert Finish("max_length") == stop(two.extended(4, -1.0))


def test_a_beam_knows_its_tokens() -> None:
    """In order, with their scores and their sum; a beam that was extended is as it was."""
    stem = Beam.empty().extended(7, -0.5)
    beam = stem.extended(8, -0.25)

    assert [(7, -0.5), (8, -0.25)] == [(one.token, one.token_score) for one in beam.tokens()]
    assert (-0.75, 2) == (beam.total, beam.length)
    assert [7] == [one.token for one in stem.tokens()]
    assert [] == Beam.empty().tokens()
