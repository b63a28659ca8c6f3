"""
Support for tests of parts and decoders.

:class:`ScriptedDecoder` is a decoder whose logits come from a table: exact in every width and
batch, and fast. :func:`check_decoder` checks any decoder against the contract, and
:func:`check_processor`, :func:`check_stop`, :func:`check_drafter` and :func:`check_streamer` the parts.
"""

from .decoding.testing.contract import check_decoder
from .decoding.testing.drafter_check import check_drafter
from .decoding.testing.processor_check import check_processor
from .decoding.testing.scripted_decoder import ScriptedDecoder, last_token, whole_prefix
from .decoding.testing.stop_check import check_stop
from .decoding.testing.streamer_check import check_streamer

__all__ = [
    "ScriptedDecoder",
    "check_decoder",
    "check_drafter",
    "check_processor",
    "check_stop",
    "check_streamer",
    "last_token",
    "whole_prefix",
]
