"""An engine matcher at the start of a text, to copy."""

import threading
from collections.abc import Callable
from typing import Any

import attrs

from ...decoding.fork_safe_lock import fork_safe_lock


@attrs.define(eq=False)
class SharedStart:
    """
    A matcher of llguidance at the start of a text, never advanced; its copies share the engine's lexer.

    A limit of the engine (``llguidance.LLParserLimits.max_lexer_states``) counts the lexer's states over all
    copies. Beyond it, every copy fails: :meth:`replaces` then makes another matcher, with a new lexer.
    """

    make: Callable[[], Any]
    """Makes a matcher with a new lexer."""

    matcher: Any = attrs.field(init=False)
    """The matcher to copy, by ``deep_copy()``."""

    _lock: threading.Lock = attrs.field(init=False, factory=fork_safe_lock)

    @matcher.default
    def _first(self) -> Any:
        return self.make()

    def replaces(self, used: Any) -> bool:
        """Whether :attr:`matcher` is another than *used*; made anew here if its copies fail."""
        with self._lock:
            if _fails(self.matcher.deep_copy()):
                self.matcher = self.make()
            return self.matcher is not used


def _fails(matcher: Any) -> bool:
    matcher.compute_bitmask()
    failed: bool = matcher.is_error()
    return failed
