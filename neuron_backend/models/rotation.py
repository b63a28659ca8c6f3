"""
Rotary positions whose frequencies depend on how long a row has become.

In transformers the longest row of a batch decides for all, and keys in the cache stay as they were
rotated. Rows here do not depend on each other, so the frequencies of a decoder's own copy are
fixed where they cannot change within its positions.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from .unsupported import UnsupportedArchitecture

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def fix_rotation(model: "PreTrainedModel", max_length: int) -> None:
    """
    Let *model*, a decoder's own copy, rotate rows of up to *max_length* positions in one way.

    Raises:
        UnsupportedArchitecture: A row would be rotated otherwise from some position on.
    """
    for module in model.modules():
        for kind, rope_type in _types(module):
            if rope_type == "longrope":
                _check(type(model).__name__, _original_length(module, kind), max_length)
            # "dynamic" changes beyond the positions that the model knows, and no decoder has more.
            if rope_type == "longrope" or "dynamic" in rope_type:
                _fix(module, kind)


def _types(module: Any) -> Iterator[tuple[str | None, str]]:
    """Kind of layer, None for all, and type of rotation."""
    types = getattr(module, "rope_type", None)
    if isinstance(types, dict):
        yield from list(types.items())
    elif isinstance(types, str):
        yield None, types


def _original_length(module: Any, kind: str | None) -> int:
    # Before transformers 5 it was said elsewhere.
    parameters = getattr(module.config, "rope_parameters", None) or module.config.rope_scaling
    found = parameters if kind is None else parameters[kind]
    length: int = (
        found.get("original_max_position_embeddings") or module.config.original_max_position_embeddings
    )
    return length


def _check(architecture: str, original: int, max_length: int) -> None:
    if max_length > original:
        raise UnsupportedArchitecture(
            architecture,
            f"it rotates rows longer than {original} positions otherwise, from their first token on: "
            f"'max_length' must be <= {original}: got {max_length}",
        )


def _fix(module: Any, kind: str | None) -> None:
    prefix = "" if kind is None else f"{kind}_"
    # The stock model may have been run over a long row before it came here.
    first: nn.Buffer = getattr(module, f"{prefix}original_inv_freq")
    module.register_buffer(f"{prefix}inv_freq", first.clone(), persistent=False)
    if kind is None:
        module.rope_type = "default"
    else:
        module.rope_type = {**module.rope_type, kind: "default"}
