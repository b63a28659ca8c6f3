"""Formats of weights that Neuron does not have."""

from collections.abc import Iterable


def check_weight_formats(formats: Iterable[str | None], target: str) -> None:
    """
    Refuse weights in float8.

    Raises:
        ValueError: They are among *formats*; the message names the *target*.
    """
    if "float8" in formats:
        raise ValueError(
            f"'weights' must be 'int8', 'int4' or None for target {target!r}: got 'float8', "
            "whose range Neuron's own 8-bit floats do not have"
        )
