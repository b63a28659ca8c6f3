from collections.abc import Iterator
from types import TracebackType

import attrs

from .event_text import single_row_text
from .queue_streamer import TextQueueStreamer


@attrs.define(eq=False)
class TextIterator(TextQueueStreamer):
    """
    Read the text of one row in one thread while another generates it.

    Pass it as the streamer of a generation that runs in a thread, and iterate over it to get the
    pieces as they become final. What the generation raises, the reader raises too. Leaving the
    loop, or the block of a ``with``, stops the generation within a step::

        with TextIterator() as pieces:
            threading.Thread(target=generator, args=(prompt,), kwargs={"streamer": pieces}).start()
            for piece in pieces:
                ...

    It serves one generation. To leave a loop and read on later, loop over ``next(pieces)``. One
    that nobody ever reads holds its generation up for as long as the program runs, unless it is
    closed: hence the ``with``. The thread need be no daemon: when the main thread and the reader's have
    ended, it stops by itself, while a daemon in the midst of a forward may take the process down.

    Args:
        timeout: Longest time in seconds to wait for a piece; None waits for as long as it takes.

        capacity: Pieces that may wait to be read.

        when_full: What the generation does while as many wait: ``"wait"`` for the reader, or
            ``"merge"`` what comes into the last of them and go on. Nothing is lost either way.
    """

    def __iter__(self) -> Iterator[str]:
        """Read to the end; a loop that is left before closes this."""
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
        """Read no further: the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    def __enter__(self) -> "TextIterator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
