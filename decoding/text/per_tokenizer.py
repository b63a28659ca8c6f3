"""A cache with one value per tokenizer."""

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import attrs

from ..fork_safe_lock import fork_safe_lock

T = TypeVar("T")


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
        fingerprint = _fingerprint(tokenizer)
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
