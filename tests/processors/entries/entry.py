"""A catalogue entry."""

import math
from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import strategies as st
from torch import Tensor

from decodekit.decoding.protocols import Processor

NONE = object()
"""The neutral value of a processor that is never off."""


@attrs.frozen
class Entry:
    """A processor, what it may be given, and what it must equal."""

    make: Callable[[Any], Processor]
    parameters: st.SearchStrategy[Any]
    neutral: Any
    """The value that changes nothing; :data:`NONE` where there is no such value."""

    example: Any
    """A value that changes something."""

    reference: Callable[[Any, int], Callable[[Tensor, Tensor], Tensor]]
    """Parameter and prompt length to a function of ids ``[1, length]`` and logits ``[1, vocab]``."""

    rows: bool = True
    """Whether the parameter may be one per row."""

    hard: bool = False
    """Whether it may leave a row without a token."""

    forces: bool = False
    """Whether it may let in what was forbidden."""

    host_only: bool = False
    """Whether it runs Python that no graph can hold."""

    atol: float = 0.0
    """How far from the reference it may lie."""

    floor: float = -math.inf
    """Below this it is next to nothing, and anything else below it as good."""


def off_or(neutral: Any, make: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
    """Hugging Face's own, which has no off-value: there it is left out of the list."""
    return lambda value, prompt: (lambda ids, logits: logits) if value == neutral else make(value)
