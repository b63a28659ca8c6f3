"""Text of an event, for streamers of a single row."""

from ..decoding.results.events import Event


def single_row_text(event: Event) -> str:
    """Text of *event*, which must be of row 0 and have text."""
    if event.row != 0:
        raise ValueError(
            f"this streamer shows one row, and here is an event of row {event.row}: for several prompts, "
            "iterate over generator.stream(prompts) and use event.row"
        )
    if event.text is None:
        raise ValueError("this streamer shows text, and the event has none: pass tokenizer= to the Generator")
    return event.text
