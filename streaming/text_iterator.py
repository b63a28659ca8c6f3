"""Iterator over the text of a generation in another thread."""

from collections.abc import Iterator
from types import TracebackType

import attrs

from .event_text import single_row_text
from .queue_streamer import TextQueueStreamer


@attrs.define(eq=False)
class TextIterator(TextQueueStreamer):
    """
    Iterate over the text of one row while another thread generates it.

    Pass it as the streamer of a generation in a thread, and iterate over it to get pieces of text
    as they become final. Exceptions of the generation are raised in the reader. Leaving the loop
    or the ``with`` block stops the generation within one step::

        with TextIterator() as pieces:
            threading.Thread(target=generator, args=(prompt,), kwargs={"streamer": pieces}).start()
            for piece in pieces:
                ...

    For one generation only. To pause reading and resume later, call ``next(pieces)`` instead of
    looping over it. An iterator that is never read blocks its generation until it is closed: hence
    the ``with``. The thread need not be a daemon: it stops by itself once the main thread and the
    reader's thread have ended, whereas a daemon inside a forward may crash the process at exit.

    Args:
        timeout: Longest wait for a piece in seconds; None for no limit.

        capacity: Maximum number of pieces waiting to be read.

        when_full: Behaviour at capacity: ``"wait"`` pauses the generation, ``"merge"`` appends to
            the last waiting piece and continues. No text is lost either way.
    """

    def __iter__(self) -> Iterator[str]:
        """Iterate to the end; leaving the loop early closes this iterator."""
        try:
            while (event := self._queue.take(self.timeout)) is not None:
                yield single_row_text(event)
        finally:
            self.close()

    def __next__(self) -> str:
        event = self._queue.take(self.timeout)
        if event is None:
            raise StopIteration
        return single_row_text(event)

    def close(self) -> None:
        """Stop reading; the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    def __enter__(self) -> "TextIterator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
