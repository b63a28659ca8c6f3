"""Text of an event, for streamers of a single row."""

from collections.abc import Sized

from ..decoding.results.events import Event

_INSTEAD = "for several prompts or samples, iterate over generator.stream(prompts) and use event.row"


def require_single_row(prompts: Sized) -> None:
    """
    Check that a generation from *prompts*, one for each row, has one row.

    Raises:
        ValueError: It has another number.
    """
    if len(prompts) != 1:
        raise ValueError(f"this streamer shows one row, and there are {len(prompts)}: {_INSTEAD}")


def single_row_text(event: Event) -> str:
    """Text of *event*, which must be of row 0 and have text."""
    if event.row != 0:
        raise ValueError(f"this streamer shows one row, and here is an event of row {event.row}: {_INSTEAD}")
    if event.text is None:
        raise ValueError("this streamer shows text, and the event has none: pass tokenizer= to the Generator")
    return event.text
