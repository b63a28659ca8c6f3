"""Calls in a process that was forked, in which the other threads of its parent do not exist."""

import os
import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_after_fork(call: Callable[[], None]) -> None:
    """Have *call* called in each process that is forked from this one, on systems that fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def told_after_fork(tell: Callable[[T], None]) -> "weakref.WeakSet[T]":
    """Weak set; in a forked process *tell* is called with each member."""
    told: weakref.WeakSet[T] = weakref.WeakSet()

    def tell_each() -> None:
        for each in list(told):
            tell(each)

    call_after_fork(tell_each)
    return told
