"""A cache with one value per tokenizer."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import attrs

from ..fork_safe_lock import fork_safe_lock

T = TypeVar("T")

# By the id of each tokenizer: itself, so that the id is not reused, and its fingerprint.
_EXAMINED: ContextVar[dict[int, tuple[Any, Hashable]] | None] = ContextVar("_EXAMINED", default=None)


@contextlib.contextmanager
def tokenizers_unchanged() -> Iterator[None]:
    """
    A block of one thread in which no tokenizer changes: each is examined for changes once.

    An examination reads all added tokens, which takes as long as a step of a small model where there are
    some hundred. No generator may yield from the block to its consumer.
    """
    if _EXAMINED.get() is not None:
        yield
        return
    token = _EXAMINED.set({})
    try:
        yield
    finally:
        _EXAMINED.reset(token)


def _examined(tokenizer: Any) -> Hashable:
    """The fingerprint of *tokenizer*; in a block without changes that of its first examination."""
    known = _EXAMINED.get()
    if known is None:
        return _fingerprint(tokenizer)
    if id(tokenizer) not in known:
        known[id(tokenizer)] = tokenizer, _fingerprint(tokenizer)
    return known[id(tokenizer)][1]


def _fingerprint(tokenizer: Any) -> Hashable:
    """A value that changes when the tokenizer does; None if changes cannot be detected."""
    try:
        added = tokenizer.added_tokens_decoder.items()
        tokens = tuple((index, token.content, token.special) for index, token in added)
        decoder = repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None))
        return len(tokenizer), tokens, tuple(tokenizer.all_special_ids), decoder
    except Exception:  # not a Hugging Face tokenizer, or its decoder is unknown to the library
        return None


@attrs.frozen(eq=False)
class PerTokenizer(Generic[T]):
    """
    One value per tokenizer, made on first access and dropped with the tokenizer.

    A changed tokenizer (after ``add_tokens``, for example) gets a new value. A tokenizer that cannot
    be weakly referenced, or whose changes cannot be detected because it is not a Hugging Face
    tokenizer, gets a new value each time. Thread-safe: concurrent calls get the same value.

    Args:
        make: Makes the value for a tokenizer.
    """

    make: Callable[[Any], T]
    # By identity: equal tokenizers may become different.
    _known: dict[int, tuple["weakref.ref[Any]", Hashable, T]] = attrs.field(init=False, factory=dict)
    _lock: threading.Lock = attrs.field(init=False, factory=fork_safe_lock)

    def of(self, tokenizer: Any) -> T:
        """The value for *tokenizer*."""
        fingerprint = _examined(tokenizer)
        if fingerprint is None:
            return self.make(tokenizer)
        key = id(tokenizer)
        try:
            # Called before the id can be reused. Without the lock: it may be called at any time.
            reference = weakref.ref(tokenizer, lambda _: self._known.pop(key, None))
        except TypeError:
            return self.make(tokenizer)
        with self._lock:
            known = self._known.get(key)
            if known is None or known[1] != fingerprint:
                known = self._known[key] = (reference, fingerprint, self.make(tokenizer))
        return known[2]
