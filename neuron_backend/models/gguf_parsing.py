"""GGUF files parsed once while transformers loads a model from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import unwrap
from typing import Any

from ...decoding.fork_safe_lock import fork_safe_lock

_patching = fork_safe_lock()


@contextmanager
def parsed_once() -> Iterator[None]:
    """
    Cache the readers and tables of tensor names of the package gguf within the block, which is not nested.

    transformers 5.24 parses a file for the config and again for the weights, and makes the table for each
    module of a model: with a model of 135M on an EPYC (Zen 2), 10 of the 19 seconds that loading takes.
    """
    gguf: Any = import_module("gguf")
    with _patching:
        # Of a forked process, another thread may have been within the block.
        reader, names = unwrap(gguf.GGUFReader), unwrap(gguf.get_tensor_name_map)
        gguf.GGUFReader, gguf.get_tensor_name_map = cache(reader), cache(names)
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = reader, names
