"""Events to people and programs."""

from .text_iterator import ClosedError, TextIterator
from .text_streamer import TextStreamer

__all__ = ["ClosedError", "TextIterator", "TextStreamer"]
