import sys
from typing import TextIO

import attrs

from ..decoding.results.events import Event
from .event_text import single_row_text


@attrs.frozen(eq=False)
class TextStreamer:
    """
    Print the text of one row as it becomes final.

    Needs a generator with a tokenizer, and a single prompt. The text is printed as it is, with any
    escape sequences that the model may have made up, as Hugging Face's streamer does: into a file or
    a pipe nothing else would be right. :class:`~.batch_display.BatchDisplay` makes them harmless.

    Args:
        file: Where to print; None is whatever ``sys.stdout`` is at that time.

    >>> streamer = TextStreamer()
    >>> streamer.put_event(Event(row=0, ids=(5, 6), text="Hello"))
    Hello
    """

    file: TextIO | None = None

    def put_event(self, event: Event) -> None:
        """Print what the event adds."""
        self._print(single_row_text(event), end="")

    def end(self) -> None:
        """Print a newline."""
        self._print("", end="\n")

    def _print(self, text: str, end: str) -> None:
        print(text, end=end, file=sys.stdout if self.file is None else self.file, flush=True)
