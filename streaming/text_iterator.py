"""Iterator over the text of a generation in another thread."""

import attrs

from ..decoding.results.events import Event
from .event_text import single_row_text
from .queue_reader import ThreadReader
from .queue_streamer import TextQueueStreamer


@attrs.define(eq=False)
class TextIterator(ThreadReader[str], TextQueueStreamer):
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
        timeout: Longest wait for a piece in seconds, after which the reader gets ``TimeoutError``, and a loop
            over it ends the generation; None for no limit.

        capacity: Maximum number of pieces waiting to be read.

        when_full: Behaviour at capacity: ``"wait"`` pauses the generation, ``"merge"`` appends to
            the last waiting piece and continues. No text is lost either way.
    """

    def _item(self, event: Event) -> str:
        return single_row_text(event)
