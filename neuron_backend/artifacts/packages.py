"""Compiled programs as files: native code and the constants that belong to it."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs
from safetensors.torch import load, save
from torch import Tensor

from ..tensor_parallel.lost_ranks import fail_together
from ..tensor_parallel.ranks import Ranks
from . import machine
from .manifest import PROGRAMS

Value = TypeVar("Value")


@attrs.frozen(eq=False)
class Package:
    """Native code that a target has compiled, without weights."""

    content: bytes
    """Content of the file, such as a .pt2 archive."""

    constants: dict[str, Tensor] = attrs.field(factory=dict)
    """Tensors that tracing found besides parameters and buffers."""


def compiled_once(ranks: Ranks | None, compile_: Callable[[], Package]) -> Package:
    """
    Result of *compile_*, called on rank 0 for all *ranks*, or on each rank where their CPUs differ.

    No program depends on the rank (:mod:`..tensor_parallel.parallel_layers`), and ranks of one host that all
    compile slow each other down.

    Raises:
        LostRank: Compilation failed on another rank.
    """
    if ranks is None:
        return compile_()
    alike = ranks.have_same(repr((machine.cpu_family(), machine.instruction_sets())).encode())
    package = Package(b"")
    with fail_together(ranks):
        if ranks.rank == 0 or not alike:
            package = compile_()
    if not alike:
        return package
    constants = {name: tensor.detach().clone() for name, tensor in package.constants.items()}
    return Package(ranks.broadcast(package.content), load(ranks.broadcast(save(constants))))


def packages_of(programs: Mapping[str, bytes], constants: Mapping[str, Tensor]) -> dict[str, Package]:
    """*programs*, by file name, each with its own part of the saved *constants*."""
    return {
        name: Package(content, strip_prefix(f"{PROGRAMS}{name}/", constants))
        for name, content in programs.items()
    }


def strip_prefix(prefix: str, named: Mapping[str, Value]) -> dict[str, Value]:
    """The items of *named* whose names begin with *prefix*, keyed without it."""
    return {name.removeprefix(prefix): each for name, each in named.items() if name.startswith(prefix)}
