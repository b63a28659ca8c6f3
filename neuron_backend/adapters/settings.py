"""What is read from another system's configuration."""

from collections.abc import Iterable, Mapping
from typing import Any

Rules = Mapping[str, tuple[tuple[Any, ...], str]]
"""By name: the values of a setting that a decoder can be made with, and why others will not do."""


def setting(config: Any, name: str, default: Any = None) -> Any:
    """The setting *name* of *config*, or *default* if it has none: versions differ."""
    value = getattr(config, name, default)
    return default if value is None else value


def number(config: Any, *names: str) -> int:
    """
    The first of *names* that *config* has, a whole number >= 1.

    Raises:
        ValueError: It has none of them.
    """
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
    raise ValueError(f"the configuration must have {' or '.join(map(repr, names))}, >= 1: got {config!r}")


def largest(config: Any, name: str, most: int) -> int:
    """The largest of the buckets *name*, at most *most*; *most* if they are left to the library."""
    buckets = getattr(config, name, None)
    return min(most, max(buckets)) if buckets else most


def check_columns(columns: int, buckets: Iterable[int]) -> None:
    """
    Refuse a verification as wide as a context encoding.

    Raises:
        ValueError: *columns* are those of one of *buckets*.
    """
    if columns > 1 and columns in buckets:
        raise ValueError(
            f"'speculation_length' must not be the size of a context bucket: got {columns} (both graphs take "
            "themselves for the one that verifies)"
        )


def text_config(config: Any) -> Any:
    """That of the language model, where a model's own is of several."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def check_settings(config: Any, rules: Rules) -> None:
    """
    Refuse a configuration with which a system could not serve as a decoder.

    Raises:
        ValueError: A setting has another value than *rules* allow. One that is absent is off.
    """
    for name, (allowed, reason) in rules.items():
        value = getattr(config, name, None)
        if value is not None and value not in allowed:
            raise ValueError(f"'{name}' must be {' or '.join(map(repr, allowed))}: got {value!r} ({reason})")


def check_window(config: Any, max_length: int) -> None:
    """
    Refuse a model whose attention looks back less far than its cache is long.

    Its compiled cache may be a ring, in which a token overwrites one before it: that cannot be rewound.

    Raises:
        ValueError: *config*, the model's, has a shorter window.
    """
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(config, name, None)
        used = getattr(config, "use_sliding_window", True) or name != "sliding_window"
        if isinstance(window, int) and window < max_length and used:
            raise ValueError(
                f"'{name}' must be >= {max_length}, the positions of a row: got {window} (the compiled cache "
                "keeps no more than that, and what was overwritten cannot be rewound to)"
            )
