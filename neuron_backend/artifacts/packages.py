"""A compiled program as it is stored."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs
from safetensors.torch import load, save
from torch import Tensor

from ..tensor_parallel.ranks import Ranks, fail_together
from . import machine
from .manifest import PROGRAMS

Each = TypeVar("Each")


@attrs.frozen(eq=False)
class Package:
    """What a target has compiled: native code, without weights."""

    content: bytes
    """A file, such as a .pt2 archive."""

    constants: dict[str, Tensor] = attrs.field(factory=dict)
    """Tensors that tracing found outside parameters and buffers."""


def compiled_once(ranks: Ranks | None, compile_: Callable[[], Package]) -> Package:
    """
    What *compile_* gives, called on rank 0 for all *ranks*; on each of them where processors differ.

    No program depends on the rank (:mod:`..tensor_parallel.parallel_layers`), and ranks of one host would only be
    in each other's way.

    Raises:
        LostRank: It has failed on another rank.
    """
    if ranks is None:
        return compile_()
    alike = ranks.have_same(repr((machine.processor(), machine.instruction_sets())).encode())
    package = Package(b"")
    with fail_together(ranks):
        if ranks.rank == 0 or not alike:
            package = compile_()
    if not alike:
        return package
    constants = {name: tensor.detach().clone() for name, tensor in package.constants.items()}
    return Package(ranks.broadcast(package.content), load(ranks.broadcast(save(constants))))


def packages_of(programs: Mapping[str, bytes], constants: Mapping[str, Tensor]) -> dict[str, Package]:
    """*programs*, by file name, each with what of the saved *constants* is its own."""
    return {
        name: Package(content, below(f"{PROGRAMS}{name}/", constants)) for name, content in programs.items()
    }


def below(prefix: str, named: Mapping[str, Each]) -> dict[str, Each]:
    """Those of *named* whose names begin with *prefix*, by what follows it."""
    return {name.removeprefix(prefix): each for name, each in named.items() if name.startswith(prefix)}
