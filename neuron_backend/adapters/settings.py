"""Reading and checking settings of another library's configuration."""

from collections.abc import Iterable, Mapping
from typing import Any

Rules = Mapping[str, tuple[tuple[Any, ...], str]]
"""Name of a setting to its allowed values, and the reason why others are refused."""


def setting(config: Any, name: str, default: Any = None) -> Any:
    """The setting *name* of *config*, or *default* if this version has none or it is None."""
    value = getattr(config, name, default)
    return default if value is None else value


def number(config: Any, *names: str) -> int:
    """
    The first of *names* that *config* has as a whole number >= 1.

    Raises:
        ValueError: It has none of them.
    """
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
    raise ValueError(f"the configuration must have {' or '.join(map(repr, names))}, >= 1: got {config!r}")


def largest(config: Any, name: str, most: int) -> int:
    """The largest of the buckets *name*, at most *most*; *most* if the library chooses the buckets."""
    buckets = getattr(config, name, None)
    return min(most, max(buckets)) if buckets else most


def check_columns(columns: int, buckets: Iterable[int]) -> None:
    """
    Refuse a verification as wide as a context-encoding bucket.

    Raises:
        ValueError: *columns* is one of *buckets*.
    """
    if columns > 1 and columns in buckets:
        raise ValueError(
            f"'speculation_length' must not be the size of a context bucket: got {columns} (both graphs "
            "would act as the verifying one)"
        )


def text_config(config: Any) -> Any:
    """The configuration of the language model, which may be a part of a multimodal one."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def check_settings(config: Any, rules: Rules) -> None:
    """
    Refuse a configuration that does not fit a decoder.

    Raises:
        ValueError: A setting has a value that *rules* do not allow. Absent settings are allowed.
    """
    for name, (allowed, reason) in rules.items():
        value = getattr(config, name, None)
        if value is not None and value not in allowed:
            raise ValueError(f"'{name}' must be {' or '.join(map(repr, allowed))}: got {value!r} ({reason})")


def check_window(config: Any, max_length: int) -> None:
    """
    Refuse a model whose compiled cache may be a ring buffer that is shorter than a row.

    What a ring has overwritten, a rewind cannot restore. NxD Inference writes position p of a sliding window
    to slot p modulo window - 1, and of an attention chunk to slot p modulo its size.

    Raises:
        ValueError: The model's *config* has a window or chunk whose ring has fewer than *max_length* slots.
    """
    for name, lost in {"sliding_window": 1, "attention_chunk_size": 0}.items():
        window, least = getattr(config, name, None), max_length + lost
        used = getattr(config, "use_sliding_window", True) or name != "sliding_window"
        if isinstance(window, int) and window < least and used:
            raise ValueError(
                f"'{name}' must be >= {least} for the {max_length} positions of a row: got {window} (the "
                f"compiled cache may be a ring of {window - lost} slots, and what it has overwritten cannot "
                "be rewound to)"
            )
