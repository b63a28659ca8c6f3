"""Streamers: consumers of a generation's events."""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..decoding.results.streamers import ClosedError as ClosedError
    from .async_event_iterator import AsyncEventIterator as AsyncEventIterator
    from .async_text_iterator import AsyncTextIterator as AsyncTextIterator
    from .batch_display import BatchDisplay as BatchDisplay
    from .callback import Callback as Callback
    from .event_iterator import EventIterator as EventIterator
    from .fan_out import FanOut as FanOut
    from .json_lines import JsonLines as JsonLines
    from .latency_meter import Latency as Latency, LatencyMeter as LatencyMeter, RowLatency as RowLatency
    from .ray_serve import serve_app as serve_app
    from .sse import (
        async_server_sent_events as async_server_sent_events,
        server_sent_events as server_sent_events,
    )
    from .text_iterator import TextIterator as TextIterator
    from .text_streamer import TextStreamer as TextStreamer
    from .transformers_streamer import TransformersStreamer as TransformersStreamer
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
