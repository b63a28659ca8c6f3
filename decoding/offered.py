"""What a part offers besides being called."""

from typing import Any


def offered(part: object, name: str) -> Any:
    """
    The method *name* of *part*; None if it has none, or one that may no longer say what a call says.

    A subclass that changes what a call does, and nothing else, still inherits the short cuts of its base.
    """
    for kind in type(part).__mro__:
        if name in vars(kind):
            return getattr(part, name)
        if "__call__" in vars(kind):
            return None
    return None
