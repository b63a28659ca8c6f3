"""What a chain of processors is, as far as a compiled program can tell."""

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
    A digest that two chains share if they compute the same.

    Of the kinds of the stages, of what they were given, and of the kind of the sampler. Its
    seed is left out: it comes in with the noise. The same in every process of one version of
    decodekit.

    Returns:
        None if there is no telling: a stage is not decodekit's own, or holds a function.
    """
    try:
        facts = [__version__, _name(sampler), *map(_facts, stages_of(processors))]
    except TypeError:
        return None
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def same_chain(one: tuple[Processor | None, Sampler], other: tuple[Processor | None, Sampler]) -> bool:
    """Whether two pairs of a chain and a sampler are known to compute the same."""
    if type(one[1]) is not type(other[1]):
        return False
    mine, theirs = stages_of(one[0]), stages_of(other[0])
    if len(mine) == len(theirs) and all(a is b for a, b in zip(mine, theirs, strict=True)):
        return True
    digest = chain_digest(*one)
    return digest is not None and digest == chain_digest(*other)


def has_rows(processors: Processor | None) -> bool:
    """Whether a parameter may be one a row, so that the number of rows is the chain's own."""
    return any(isinstance(value, Tensor) for stage in stages_of(processors) for value in _parameters(stage))


def _parameters(part: Any) -> list[Any]:
    # Of a class that is not of attrs, all that it keeps.
    return list((options_of(part) if attrs.has(type(part)) else getattr(part, "__dict__", {})).values())


def _facts(value: Any) -> Any:
    """*value* as JSON; ``TypeError`` if that would not say all of it."""
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
