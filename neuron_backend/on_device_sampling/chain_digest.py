"""Digest of a processor chain and sampler: whether two compute the same in a compiled program."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import attrs
from torch import Tensor

from ... import __version__
from ...decoding.optional_protocols import stages_of
from ...decoding.protocols import Processor, Sampler
from ...processors.parameter import options_of
from ..models.weights import dtype_name


def chain_digest(processors: Processor | None, sampler: Sampler) -> str | None:
    """
    Digest that is equal for two chains only if they compute the same.

    Covers the stages' classes and options and the sampler's class. The sampler's seed is left out, since it
    comes in with the noise. Stable across processes of one version of decodekit.

    Returns:
        None if unknown: a stage is not decodekit's own, or holds a function.
    """
    try:
        facts = [__version__, _name(sampler), *map(_facts, stages_of(processors))]
    except TypeError:
        return None
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def same_chain(one: tuple[Processor | None, Sampler], other: tuple[Processor | None, Sampler]) -> bool:
    """Whether two pairs of chain and sampler are known to compute the same."""
    if type(one[1]) is not type(other[1]):
        return False
    mine, theirs = stages_of(one[0]), stages_of(other[0])
    if len(mine) == len(theirs) and all(a is b for a, b in zip(mine, theirs, strict=True)):
        return True
    digest = chain_digest(*one)
    return digest is not None and digest == chain_digest(*other)


def has_rows(processors: Processor | None) -> bool:
    """Whether a parameter may have one value per row, which fixes the chain's number of rows."""
    return any(isinstance(value, Tensor) for stage in stages_of(processors) for value in _parameters(stage))


def _parameters(part: Any) -> list[Any]:
    # Without attrs, all of the instance's attributes.
    return list((options_of(part) if attrs.has(type(part)) else getattr(part, "__dict__", {})).values())


def _facts(value: Any) -> Any:
    """*value* as JSON; ``TypeError`` if JSON cannot represent it completely."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON has no infinity, and a repr is exact.
        return [repr(value)]
    if isinstance(value, Tensor):
        return [dtype_name(value.dtype), list(value.shape), repr(value.tolist())]
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(_facts, value)]
    if isinstance(value, Mapping):
        return ["mapping", *([_facts(key), _facts(value[key])] for key in value)]
    if isinstance(value, frozenset | set):
        return ["set", *sorted(map(_facts, value))]
    if attrs.has(type(value)) and _is_ours(type(value)):
        return [_name(value), *([name, _facts(option)] for name, option in options_of(value).items())]
    raise TypeError(f"what a {type(value).__name__} computes is not known")


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
