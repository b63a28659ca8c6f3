"""
RoPE scaling whose frequencies depend on the current length (``"dynamic"``, ``"longrope"``), made static.

In transformers the longest row of a batch determines the frequencies of all, and keys already in the cache
are not rotated again. Rows of a decoder are independent of each other, so its own copy of the model gets the
frequencies that apply to all of its positions.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .unsupported import UnsupportedArchitecture

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def fix_rope_scaling(model: "PreTrainedModel", max_length: int) -> None:
    """
    Fix the RoPE frequencies of *model*, a decoder's own copy, for up to *max_length* positions.

    Raises:
        UnsupportedArchitecture: The frequencies change within *max_length* positions.
    """
    check_rope_scaling(model, max_length)
    for module in model.modules():
        for kind, rope_type in _types(module):
            if rope_type == "longrope" or "dynamic" in rope_type:
                _fix(module, kind)


def check_rope_scaling(model: "PreTrainedModel", max_length: int) -> None:
    """
    Refuse a *model* whose RoPE frequencies follow from the rows of a forward; nothing is modified.

    For a stock model, which cannot be given fixed frequencies. Within the original length, they are the same
    for every row.

    Raises:
        UnsupportedArchitecture: The frequencies change within *max_length* positions.
    """
    for module in model.modules():
        for kind, rope_type in _types(module):
            # "dynamic" changes beyond the model's maximum positions only, which no decoder exceeds.
            if rope_type == "longrope":
                _check(type(model).__name__, _original_length(module, kind), max_length)


def check_config_rope(config: Any, architecture: str, max_length: int) -> None:
    """
    Refuse as :func:`check_rope_scaling` what a *config* tells, before a model is loaded.

    Raises:
        UnsupportedArchitecture: The frequencies change within *max_length* positions.
    """
    text = config.get_text_config(decoder=True)
    # transformers before 5 has rope_scaling.
    found = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    by_layer = [one for one in found.values() if isinstance(one, Mapping)]
    for parameters in by_layer or [found]:
        original = parameters.get("original_max_position_embeddings") or getattr(
            text, "original_max_position_embeddings", None
        )
        if parameters.get("rope_type", parameters.get("type")) == "longrope" and original:
            _check(architecture, original, max_length)


def _types(module: Any) -> Iterator[tuple[str | None, str]]:
    """Layer type, or None for all layers, and RoPE type."""
    types = getattr(module, "rope_type", None)
    if isinstance(types, dict):
        yield from list(types.items())
    elif isinstance(types, str):
        yield None, types


def _original_length(module: Any, kind: str | None) -> int:
    # transformers before 5 has rope_scaling.
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
    # The stock model may already have changed its frequencies on a long row.
    first: Tensor = getattr(module, f"{prefix}original_inv_freq")
    if first.is_meta:
        # Built without memory: before transformers 5 it is no buffer, and no saved decoder has it.
        first = module.get_buffer(f"{prefix}inv_freq")
    module.register_buffer(f"{prefix}inv_freq", first.clone(), persistent=False)
    if kind is None:
        module.rope_type = "default"
    else:
        module.rope_type = {**module.rope_type, kind: "default"}
