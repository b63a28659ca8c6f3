"""The longest suffix of a text that occurred earlier, and the evidence that it gives."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class RepeatedSuffix(NamedTuple):
    """The longest suffix that occurred earlier, and where."""

    length: int
    """In tokens; 0 if there is none."""

    end: int
    """End position of its latest earlier occurrence, which may overlap the suffix."""

    earlier: int
    """That of the occurrence before; 0 if there is none."""


def match_evidence(match: RepeatedSuffix, tokens: Sequence[int] | NDArray[np.int64]) -> int:
    """
    Evidence that the text goes on as after the latest occurrence; 0 without one.

    It grows with the length, and more where the occurrence before went on alike. In 40 texts of SmolLM2-135M
    the next token was right after matches of 1, 2, 3 and 4 tokens in 31, 48, 62 and 72 % of cases if there
    was one occurrence, in 48, 77, 86 and 91 % if the last two went on alike, and in 12, 22, 26 and 20 % if
    they did not.

    Args:
        match: Of a text's end.

        tokens: Those in which it occurred.

    >>> match_evidence(RepeatedSuffix(2, 2, 0), [1, 2, 3, 1, 2])
    3
    >>> match_evidence(RepeatedSuffix(2, 6, 2), [1, 2, 3, 4, 1, 2, 3, 5, 1, 2])
    5
    >>> match_evidence(RepeatedSuffix(2, 5, 2), [1, 2, 3, 1, 2, 4, 1, 2])
    1
    """
    if not match.earlier:
        return match.length and match.length + 1
    return 2 * match.length + 1 if tokens[match.end] == tokens[match.earlier] else 1
