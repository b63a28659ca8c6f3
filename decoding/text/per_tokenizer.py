"""What is worked out about a tokenizer, kept for all who use it."""

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import attrs

T = TypeVar("T")


def _fingerprint(tokenizer: Any) -> Hashable:
    """What tells a tokenizer from the same one after a change, or None where nothing does."""
    try:
        added = tokenizer.added_tokens_decoder.items()
        tokens = tuple((index, token.content, token.special) for index, token in added)
        decoder = repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None))
        return len(tokenizer), tokens, tuple(tokenizer.all_special_ids), decoder
    except Exception:  # none of Hugging Face's, or with a decoder of which the library knows nothing
        return None


@attrs.frozen(eq=False)
class PerTokenizer(Generic[T]):
    """
    One value for each tokenizer, made when it is first asked for and gone with the tokenizer.

    A tokenizer that was changed since (by ``add_tokens``, say) gets another. One that cannot be
    referenced weakly, or whose changes cannot be seen because it is none of Hugging Face's, gets
    another each time. Threads may ask at once: they get the same.

    Args:
        make: Makes the value for a tokenizer.
    """

    make: Callable[[Any], T]
    # By identity: tokenizers may be equal and yet become different.
    _known: dict[int, tuple["weakref.ref[Any]", Hashable, T]] = attrs.field(init=False, factory=dict)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)

    def of(self, tokenizer: Any) -> T:
        """The value for *tokenizer*."""
        fingerprint = _fingerprint(tokenizer)
        if fingerprint is None:
            return self.make(tokenizer)
        key = id(tokenizer)
        try:
            # Called before its id can be another's. Without the lock: it may come at any time.
            reference = weakref.ref(tokenizer, lambda _: self._known.pop(key, None))
        except TypeError:
            return self.make(tokenizer)
        with self._lock:
            known = self._known.get(key)
            if known is None or known[1] != fingerprint:
                known = self._known[key] = (reference, fingerprint, self.make(tokenizer))
        return known[2]
