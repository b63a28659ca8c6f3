"""Refusal of a part that cannot run on the device."""

from .device_ranking import LARGEST_K

_CANNOT = " cannot run on the device: "


def refusal(part: object, reason: str) -> ValueError:
    """The error for a *part* without a device variant."""
    return ValueError(f"{part!r}{_CANNOT}{reason}")


def reason_of(error: ValueError) -> str:
    """The reason in a :func:`refusal`."""
    return str(error).partition(_CANNOT)[2]


def check_size(stage: object, name: str, size: int) -> None:
    """Refuse a *stage* whose parameter *name* needs a wider top-k than a device has."""
    if size > LARGEST_K:
        raise refusal(stage, f"{name!r} must be <= {LARGEST_K:,} there")
