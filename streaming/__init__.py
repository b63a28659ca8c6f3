"""Events to people and programs."""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..decoding.results.streamers import ClosedError
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
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "..decoding.results.streamers": "ClosedError",
            ".async_event_iterator": "AsyncEventIterator",
            ".async_text_iterator": "AsyncTextIterator",
            ".batch_display": "BatchDisplay",
            ".callback": "Callback",
            ".event_iterator": "EventIterator",
            ".fan_out": "FanOut",
            ".json_lines": "JsonLines",
            ".latency_meter": "Latency LatencyMeter RowLatency",
            ".ray_serve": "serve_app",
            ".sse": "async_server_sent_events server_sent_events",
            ".text_iterator": "TextIterator",
            ".text_streamer": "TextStreamer",
            ".transformers_streamer": "TransformersStreamer",
        },
    )

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
