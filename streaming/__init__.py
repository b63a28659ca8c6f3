"""Events to people and programs."""

from ..decoding.streamers import ClosedError
from .async_event_iterator import AsyncEventIterator
from .async_text_iterator import AsyncTextIterator
from .batch_display import BatchDisplay
from .callback import Callback
from .event_iterator import EventIterator
from .fan_out import FanOut
from .json_lines import JsonLines
from .latency_meter import Latency, LatencyMeter, RowLatency
from .ray_serve import serve_app
from .sse import async_server_sent_events, server_sent_events
from .text_iterator import TextIterator
from .text_streamer import TextStreamer
from .transformers_streamer import TransformersStreamer

__all__ = [
    "AsyncEventIterator",
    "AsyncTextIterator",
    "BatchDisplay",
    "Callback",
    "ClosedError",
    "EventIterator",
    "FanOut",
    "JsonLines",
    "Latency",
    "LatencyMeter",
    "RowLatency",
    "TextIterator",
    "TextStreamer",
    "TransformersStreamer",
    "async_server_sent_events",
    "serve_app",
    "server_sent_events",
]
