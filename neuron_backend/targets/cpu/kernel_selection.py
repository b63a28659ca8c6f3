"""
Selection of the numbers of rows for which own kernels replace torch's.

Both are timed on the decoder's own weights when it is compiled: which is faster depends on the CPU, on the
bits and sizes of the weights, and on the threads.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from math import inf

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...artifacts.machine import instruction_sets
from ...quantization.int4_linear import Int4Linear
from ...quantization.int8_activation_split import (
    MOST_INPUTS,
    NUM_PLANES,
    can_split,
    exact_matmul,
    pack_weights,
    stored,
)
from ...quantization.int8_linear import Int8Linear
from ...quantization.quantized import QuantizedLinear
from ...quantization.quantized_matmul import aten_packing_matches, int4_matmul, int8_matmul
from .graph_rewrites import onednn_dtypes
from .kernel_library import DTYPES, MOST_ROWS, MOST_ROWS_BY_4_BITS, NO_LIBRARY, Library, NoLibrary

# Bytes of weights that are read in turn, more than caches hold; and repetitions.
_BYTES = 256 * 2**20
_ROUNDS = 12
# Torch's kernels are given up once they take this many times as long, but not within the first seconds of
# _BRIEF: their first calls generate code.
_HOPELESS = 10
_BRIEF = 0.1

Product = Callable[[], Tensor]


def select_kernels(
    model: nn.Module, dtype: torch.dtype, rows: Iterable[int], together: Iterable[int]
) -> Library | NoLibrary:
    """
    Time the kernels and select the fastest. Takes some seconds.

    Args:
        model: Model with the weights.

        dtype: Dtype of the layers' inputs.

        rows: Numbers of rows of all programs.

        together: Numbers of rows whose tokens must be equal, those of decoding and verification: all of
            them use the same kernels, those with the smaller total time.

    Returns:
        Kernels for those of *rows* where they are faster than torch's; :data:`~.kernel_library.NO_LIBRARY`
        if there are none. With tiles or without, whichever takes less time for all *rows* together.
    """
    layers = list(_sample(model, dtype))
    by_4_bits = [layer for layer in layers if isinstance(layer, Int4Linear)]
    most = MOST_ROWS_BY_4_BITS if by_4_bits else MOST_ROWS
    candidates = tuple(sorted({count for count in rows if count <= most}))
    if dtype not in DTYPES or not candidates or not layers:
        return NO_LIBRARY
    # Quantised weights have only one variant.
    kinds = dtype in tiled_dtypes() and any(isinstance(layer, nn.Linear) for layer in layers)
    found = []
    for tiled in (False, True) if kinds else (False,):
        library = _library(dtype, candidates, tiled)
        seconds = {
            count: measured(library, layers if count <= MOST_ROWS else by_4_bits, count)
            for count in candidates
        }
        selected = select_rows(seconds, set(together))
        spent = sum(seconds[count][count not in selected] for count in candidates)
        found.append((spent, attrs.evolve(library, rows=selected) if selected else NO_LIBRARY))
    return min(found, key=lambda pair: pair[0])[1]


@cache
def _library(dtype: torch.dtype, rows: tuple[int, ...], tiled: bool) -> Library:
    return Library.compiled(dtype, rows, tiled=tiled)


def tiled_dtypes() -> frozenset[torch.dtype]:
    """Dtypes that this CPU can multiply with AMX tiles as well as with vectors."""
    return frozenset([torch.bfloat16] if "amx_bf16" in instruction_sets() else [])


def select_rows(seconds: Mapping[int, tuple[float, float]], together: set[int]) -> tuple[int, ...]:
    """
    Numbers of rows for which own kernels are faster than torch's.

    >>> select_rows({1: (2.0, 5.0), 5: (4.0, 3.0), 16: (9.0, 5.0)}, together={1, 5})
    (1, 5)

    Args:
        seconds: Number of rows to the time of the own kernels and of torch's.

        together: Numbers of rows that are decided together, by their sum.
    """
    kinds = [together & seconds.keys(), *({count} for count in seconds.keys() - together)]
    sums = [
        (kind, [sum(parts) for parts in zip(*map(seconds.__getitem__, kind), strict=True)]) for kind in kinds
    ]
    return tuple(sorted(count for kind, sides in sums if sides and sides[0] < sides[1] for count in kind))


def measured(
    library: Library, layers: Sequence[QuantizedLinear | nn.Linear], rows: int
) -> tuple[float, float]:
    """Seconds of the products of all *layers* with *library* and with torch, each the minimum of several."""
    own, torchs = [], []
    for layer in layers:
        product, weights = _operands(layer)
        # From the tensor: with tensor parallelism, a layer's size attributes are those of the whole.
        x = torch.full((rows, weights[0].shape[1]), 0.5, dtype=library.dtype)
        own.append(partial(product, library, x, *weights))
        torchs.append(_by_torch(layer, x))
    times: list[tuple[float, float]] = []
    for _ in range(_ROUNDS):
        spent = _seconds(own)
        times.append((spent, _seconds(torchs, max(_HOPELESS * spent, _BRIEF))))
        # Without the first round, which reads untouched memory.
        ours, theirs = map(min, zip(*times[1:] or times, strict=True))
        if len(times) > 2 and max(ours, theirs) > _HOPELESS * min(ours, theirs):
            break
    return ours, theirs


def _seconds(products: Sequence[Product], limit: float = inf) -> float:
    """Time of all *products*, or of those up to the first after which it exceeds *limit*."""
    start = time.perf_counter()
    for product in products:
        product()
        if (spent := time.perf_counter() - start) > limit:
            break
    return spent


def _sample(model: nn.Module, dtype: torch.dtype) -> Iterable[QuantizedLinear | nn.Linear]:
    """Layers of *model* with inputs of *dtype*, of more bytes than any cache holds."""
    size = 0
    for layer in model.modules():
        if not isinstance(layer, nn.Linear | Int8Linear | Int4Linear):
            continue
        product, weights = _operands(layer)
        # As in quantized_matmul.cpu_matmul.
        integers = weights[0].dtype == torch.int8 and weights[0].shape[1] <= MOST_INPUTS
        known = product is not Library.int8_gemm or integers
        whole = all(weight.is_contiguous() and weight.numel() for weight in weights)
        if known and whole and weights[-1].dtype == dtype and size < _BYTES:
            size += weights[0].nbytes
            yield layer


def _operands(layer: nn.Module) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The method of :class:`~.kernel_library.Library` for *layer*, and its weight arguments."""
    if isinstance(layer, Int4Linear):
        return Library.int4_gemm, [layer.packed, layer.levels]
    if isinstance(layer, Int8Linear):
        return Library.int8_gemm, [layer.quantized, layer.scale]
    return Library.float_gemm, [layer.get_parameter("weight").detach()]


def _by_torch(layer: nn.Module, x: Tensor) -> Product:
    """The kernel that a program would call otherwise, over packed weights where it takes them."""
    if isinstance(layer, Int4Linear):
        return partial(int4_matmul, layer, x, aten=aten_packing_matches())
    if isinstance(layer, Int8Linear):
        if not can_split(x.dtype, layer.in_features):
            return partial(int8_matmul, layer, x)
        # Without the time of splitting the inputs, which a program does in a separate loop.
        terms = stored(x.round()).repeat(NUM_PLANES[x.dtype], 1)
        one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
        return partial(exact_matmul, terms, pack_weights(layer.quantized), one, zero)
    weight = layer.get_parameter("weight").detach()
    if x.dtype not in onednn_dtypes():
        return partial(functional.linear, x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
    return partial(torch.ops.mkldnn._linear_pointwise, x, packed, None, "none", [], "")
