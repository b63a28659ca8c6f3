"""Events to people and programs."""

from ..decoding.streamers import ClosedError
from .text_iterator import TextIterator
from .text_streamer import TextStreamer

__all__ = ["ClosedError", "TextIterator", "TextStreamer"]
