"""GGUF files parsed once while transformers loads from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from ...decoding.fork_safe_lock import fork_safe_lock

_PARSERS = ("GGUFReader", "get_tensor_name_map")

_patching = fork_safe_lock()


@contextmanager
def parsed_once() -> Iterator[None]:
    """
    Parse each file once meanwhile, and make the table of an architecture's tensor names once.

    transformers 5.23 parses a file for the config and for the weights, twice for a tokenizer, and makes the
    table for each module of a model. With a model of 135M on a Zen 2 that takes 14 of 25 seconds.
    """
    gguf: Any = import_module("gguf")
    with _patching:
        own = {name: getattr(gguf, name) for name in _PARSERS}
        for name, parser in own.items():
            setattr(gguf, name, cache(parser))
        try:
            yield
        finally:
            for name, parser in own.items():
                setattr(gguf, name, parser)
