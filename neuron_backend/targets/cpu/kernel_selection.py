"""
Selection of the kernels of a decoder's programs.

There is one kernel for each kind of weights, at every number of rows. Only bfloat16 has two where the CPU has
AMX tiles: vectors, which are faster for one row, and tiles, which are for many. They round differently, so
one of them serves a whole decoder; both are timed on its own weights.
"""

import time
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, takewhile

import torch
from torch import Tensor, nn

from ...artifacts.machine import instruction_sets
from .instruction_limit import Limit, instruction_limit
from .kernel_library import DTYPES, NO_LIBRARY, Library, NoLibrary

# Bytes of weights that are read in turn, more than caches hold; and repetitions.
_BYTES = 256 * 2**20
_ROUNDS = 5


def select_kernels(model: nn.Module, dtype: torch.dtype, rows: Iterable[int]) -> Library | NoLibrary:
    """
    The kernels for a model. Takes some seconds.

    Args:
        model: Model with the weights.

        dtype: Dtype of the layers' inputs.

        rows: Numbers of rows of all programs.

    Returns:
        Kernels, with tiles or without, whichever takes less time for all *rows* together;
        :data:`~.kernel_library.NO_LIBRARY` if there are none for *dtype*.
    """
    if dtype not in DTYPES:
        return NO_LIBRARY
    weights = _sample(model, dtype)
    libraries = [library(dtype, tiled) for tiled in ((False, True) if dtype in tiled_dtypes() else (False,))]
    if len(libraries) == 1 or not weights:
        return libraries[0]
    counts = sorted(set(rows))
    return min(libraries, key=lambda one: sum(seconds(one, weights, count) for count in counts))


def library(dtype: torch.dtype, tiled: bool = False) -> Library:
    """The kernels within :func:`~.instruction_limit.instruction_limit`, loaded once in this process."""
    known = _limited(dtype, tiled, instruction_limit())
    if not all(path.is_file() for path in known.objects):
        # The folder that it was kept in was deleted.
        _limited.cache_clear()
    return _limited(dtype, tiled, instruction_limit())


@cache
def _limited(dtype: torch.dtype, tiled: bool, limit: Limit) -> Library:
    return Library.compiled(dtype, tiled=tiled, limit=limit)


def tiled_dtypes() -> frozenset[torch.dtype]:
    """Dtypes that this CPU can multiply with AMX tiles as well as with vectors."""
    has_both = "amx_bf16" in instruction_sets() and instruction_limit() == "amx"
    return frozenset([torch.bfloat16] if has_both else [])


def seconds(kernels: Library, weights: Sequence[Tensor], rows: int) -> float:
    """Seconds of the products of so many *rows* with all *weights*, the minimum of a few."""
    inputs = {
        width: torch.full((rows, width), 0.5, dtype=kernels.dtype)
        for width in {weight.shape[1] for weight in weights}
    }
    spent = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for weight in weights:
            kernels.float_gemm(inputs[weight.shape[1]], weight)
        spent.append(time.perf_counter() - start)
    # Without the first round, which reads untouched memory.
    return min(spent[1:])


def _sample(model: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """Weights of linear layers of *dtype*, of about as many bytes as no cache holds."""
    layers = [module.weight.detach() for module in model.modules() if isinstance(module, nn.Linear)]
    known = [
        weight for weight in layers if weight.dtype == dtype and weight.numel() and weight.is_contiguous()
    ]
    sizes = accumulate(weight.nbytes for weight in known)
    return [weight for weight, _ in zip(known, takewhile(lambda size: size < _BYTES, sizes), strict=False)]
