"""Printed text of one row."""

import sys
from typing import TextIO

import attrs

from ..decoding.results.events import Event
from .encodable import encodable
from .event_text import require_single_row, single_row_text


@attrs.frozen(eq=False)
class TextStreamer:
    """
    Print the text of one row as it becomes final.

    Needs a generator with a tokenizer, and a single prompt. The text is printed verbatim, including
    any escape sequences from the model, as Hugging Face's streamer does, since files and pipes need
    the exact text. :class:`~.batch_display.BatchDisplay` replaces them. Both write ``?`` for a character that
    the file refuses to encode.

    Args:
        file: Output file; None for ``sys.stdout`` at the time of printing.

    >>> streamer = TextStreamer()
    >>> streamer.put_event(Event(row=0, ids=(5, 6), text="Hello"))
    Hello
    """

    file: TextIO | None = None

    def begin(self, prompts: list[list[int]]) -> None:
        """Check that there is one prompt, before anything is printed."""
        require_single_row(prompts)

    def put_event(self, event: Event) -> None:
        """Print the event's text."""
        self._print(single_row_text(event), end="")

    def end(self) -> None:
        """Print a newline."""
        self._print("", end="\n")

    def _print(self, text: str, end: str) -> None:
        file = sys.stdout if self.file is None else self.file
        print(encodable(text, file), end=end, file=file, flush=True)
