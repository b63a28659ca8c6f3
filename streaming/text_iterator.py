import threading
from collections import deque
from types import TracebackType

import attrs
from attrs import validators

from ..decoding.events import Event
from ..decoding.streamers import ClosedError
from .one_row import text_of


@attrs.define(eq=False)
class TextIterator:
    """
    Read the text of one row in one thread while another generates it.

    Pass it as the streamer of a generation that runs in a thread, and iterate over it to get the
    pieces as they become final. What the generation raises, the reader raises too. Used as a
    context manager, leaving the block early stops the generation within a step::

        with TextIterator() as pieces:
            threading.Thread(target=generator, args=(prompt,), kwargs={"streamer": pieces}).start()
            for piece in pieces:
                ...

    It serves one generation.

    Args:
        timeout: Longest time in seconds to wait for a piece; None waits for as long as it takes.

        capacity: Pieces that may wait to be read. The generation pauses while there are as many.
    """

    timeout: float | None = attrs.field(default=None, validator=validators.optional(validators.gt(0)))
    capacity: int = attrs.field(default=64, validator=validators.ge(1))
    _pieces: deque[str] = attrs.field(init=False, repr=False, factory=deque)
    _ended: bool = attrs.field(init=False, default=False)
    _closed: bool = attrs.field(init=False, default=False)
    _error: BaseException | None = attrs.field(init=False, repr=False, default=None)
    # Guards all of the above, and is notified whenever any of it changes.
    _change: threading.Condition = attrs.field(init=False, repr=False, factory=threading.Condition)

    # The generation's side.

    def put_event(self, event: Event) -> None:
        """
        Pass on what the event adds; wait while the reader is behind.

        Raises:
            ClosedError: The reader is gone.
        """
        with self._change:
            # Closing makes room, too.
            self._change.wait_for(lambda: len(self._pieces) < self.capacity)
            if self._closed:
                raise ClosedError("the reader closed its TextIterator, so the generation stops")
            if self._ended:
                raise RuntimeError("this TextIterator has ended: make a new one for each generation")
            if text := text_of(event):
                self._pieces.append(text)
                self._change.notify_all()

    def end(self) -> None:
        """Let the reader stop behind the last piece."""
        with self._change:
            self._ended = True
            self._change.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let the reader raise *error* behind the last piece."""
        with self._change:
            # Who has closed or read to the end is not to be told any more.
            if not (self._closed or self._ended):
                self._error = error
            self._ended = True
            self._change.notify_all()

    # The reader's side.

    def __iter__(self) -> "TextIterator":
        return self

    def __next__(self) -> str:
        with self._change:
            if not self._change.wait_for(self._is_decided, self.timeout):
                raise TimeoutError(f"no text within {self.timeout} s, the timeout of this TextIterator")
            if self._pieces:
                piece = self._pieces.popleft()
                self._change.notify_all()
                return piece
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Read no further: the generation's next event raises :class:`ClosedError` there."""
        with self._change:
            self._closed = True
            self._pieces.clear()
            self._error = None
            self._change.notify_all()

    def __enter__(self) -> "TextIterator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_decided(self) -> bool:
        return bool(self._pieces) or self._ended or self._closed
