"""
Support for tests of parts and decoders.

:class:`ScriptedDecoder` is a decoder whose logits come from a table: exact in every width and
batch, and fast. :func:`check_decoder` checks any decoder against the contract.
"""

from .decoding.testing.contract import check_decoder
from .decoding.testing.scripted_decoder import ScriptedDecoder, last_token, whole_prefix

__all__ = ["ScriptedDecoder", "check_decoder", "last_token", "whole_prefix"]
