"""What compiled programs say about themselves."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class KnowsKernels(Protocol):
    """A program that says which kernels it uses."""

    kernels: str
    """Its kernels, such as ``"own kernels (AVX-512, VNNI, BF16)"``."""

    bit_exact: bool
    """
    Whether the logits, keys and values of a column are the same bits in every such program of its decoder,
    whatever the width, the batch and the span.
    """


@runtime_checkable
class KnowsPadding(Protocol):
    """A program that says whether it computes padding."""

    skips_padding: bool
    """Whether a forward takes less time the more of its columns are padding."""


def kernels_of(programs: Mapping[str, Any], others: str) -> str:
    """
    The kernels of *programs*, and the programs that use them where they differ.

    >>> kernels_of({"width_1": print, "width_5": print}, "torch's kernels")
    "torch's kernels"

    Args:
        programs: Programs by name.

        others: Said of programs that are no :class:`KnowsKernels`.
    """
    return list_kernels({
        name: program.kernels if isinstance(program, KnowsKernels) else others
        for name, program in programs.items()
    })  # fmt: skip


def list_kernels(kernels: Mapping[str, str]) -> str:
    """
    One line of the *kernels* of programs by name.

    >>> list_kernels({"width_1": "own kernels", "width_5": "own kernels", "width_64": "torch's kernels"})
    "own kernels: width_1, width_5; torch's kernels: width_64"
    """
    users: dict[str, list[str]] = {}
    for name, described in kernels.items():
        users.setdefault(described, []).append(name)
    if len(users) == 1:
        return next(iter(users))
    return "; ".join(f"{described}: {', '.join(names)}" for described, names in users.items())


def all_bit_exact(programs: Iterable[Any]) -> bool:
    """Whether all *programs* are :attr:`~KnowsKernels.bit_exact`."""
    return all(isinstance(program, KnowsKernels) and program.bit_exact for program in programs)


def any_skips_padding(programs: Iterable[Any]) -> bool:
    """Whether any of the *programs* :attr:`~KnowsPadding.skips_padding`."""
    return any(isinstance(program, KnowsPadding) and program.skips_padding for program in programs)
