"""What counts as a whole number, of ids, lengths and streams alike."""

import numbers
from typing import Any


def is_whole(value: Any) -> bool:
    """Whether *value* is an integer of Python's or numpy's. True and False are a mistake, not 1 and 0."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
