"""Models that are divided over several GGUF files."""

from collections.abc import Mapping
from os import PathLike
from typing import Any


def refuse_part(settings: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """
    Refuse a file whose *settings* say that it is one of several parts.

    Raises:
        ValueError: It is.
    """
    parts = settings.get("split.count", 1)
    if parts > 1:
        raise ValueError(
            f"a GGUF file must have the whole model: got {path}, one of {parts} parts; "
            "`llama-gguf-split --merge FIRST_PART WHOLE` of llama.cpp joins them"
        )
