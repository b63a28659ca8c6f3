"""
Which numbers of rows are multiplied by :mod:`~..few_rows`, and which by the kernels that torch has.

Found out by measuring both on the decoder's own weights, when it is compiled: which is quicker depends on
the processor, the weights' bits and sizes, and the threads.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from math import inf

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..artifacts.machine import instruction_sets
from ..few_rows.library import DTYPES, MOST_ROWS, MOST_ROWS_BY_4_BITS, NO_LIBRARY, Library, NoLibrary
from ..quantization import digits
from ..quantization.cpu_products import aten_packs_alike, int4_product, int8_product
from ..quantization.int4_linear import Int4Linear
from ..quantization.int8_linear import Int8Linear
from ..quantization.quantized import QuantizedLinear
from .cpu_kernels import onednn_dtypes

# Of weights that are read in turn, more than caches hold; and how often.
_BYTES = 256 * 2**20
_ROUNDS = 12
# Torch's kernels are given up once they take so many times as long, but not before so many seconds:
# their first calls make code.
_HOPELESS = 10
_BRIEF = 0.1

Product = Callable[[], Tensor]


def quickest(
    model: nn.Module, dtype: torch.dtype, rows: Iterable[int], together: Iterable[int]
) -> Library | NoLibrary:
    """
    Measure. Takes some seconds.

    Args:
        model: Whose layers are multiplied by.

        dtype: Of what they multiply.

        rows: Of all programs.

        together: Of those whose tokens are to be the same, decoding and verification: they are multiplied
            in one way, which is the quicker for their sum.

    Returns:
        Code for those of *rows* that it is quicker at; none, if there are none. Of kinds of code, the one
        with which products of all *rows* take the least time together.
    """
    layers = list(_sample(model, dtype))
    by_4_bits = [layer for layer in layers if isinstance(layer, Int4Linear)]
    most = MOST_ROWS_BY_4_BITS if by_4_bits else MOST_ROWS
    candidates = tuple(sorted({count for count in rows if count <= most}))
    if dtype not in DTYPES or not candidates or not layers:
        return NO_LIBRARY
    # Weights in fewer bits have one kind of code.
    kinds = dtype in tiled_dtypes() and any(isinstance(layer, nn.Linear) for layer in layers)
    found = []
    for tiled in (False, True) if kinds else (False,):
        library = _library(dtype, candidates, tiled)
        seconds = {
            count: measured(library, layers if count <= MOST_ROWS else by_4_bits, count)
            for count in candidates
        }
        chosen = chosen_rows(seconds, set(together))
        spent = sum(seconds[count][count not in chosen] for count in candidates)
        found.append((spent, attrs.evolve(library, rows=chosen) if chosen else NO_LIBRARY))
    return min(found, key=lambda pair: pair[0])[1]


@cache
def _library(dtype: torch.dtype, rows: tuple[int, ...], tiled: bool) -> Library:
    return Library.compiled(dtype, rows, tiled=tiled)


def tiled_dtypes() -> frozenset[torch.dtype]:
    """What this processor multiplies by tiles, and by vectors too."""
    return frozenset([torch.bfloat16] if "amx_bf16" in instruction_sets() else [])


def chosen_rows(seconds: Mapping[int, tuple[float, float]], together: set[int]) -> tuple[int, ...]:
    """
    The rows that are to be multiplied by few rows' code.

    >>> chosen_rows({1: (2.0, 5.0), 5: (4.0, 3.0), 16: (9.0, 5.0)}, together={1, 5})
    (1, 5)

    Args:
        seconds: Of each number of rows, this code's and the other's.

        together: Rows that are decided as one.
    """
    kinds = [together & seconds.keys(), *({count} for count in seconds.keys() - together)]
    sums = [
        (kind, [sum(parts) for parts in zip(*map(seconds.__getitem__, kind), strict=True)]) for kind in kinds
    ]
    return tuple(sorted(count for kind, sides in sums if sides and sides[0] < sides[1] for count in kind))


def measured(
    library: Library, layers: Sequence[QuantizedLinear | nn.Linear], rows: int
) -> tuple[float, float]:
    """Seconds for products by all of *layers*: of *library*, and of torch; the least of a few, in turn."""
    few, other = [], []
    for layer in layers:
        name, weights = _operands(layer)
        # What a layer calls its size is the whole's where ranks hold a part each.
        x = torch.full((rows, weights[0].shape[1]), 0.5, dtype=library.dtype)
        few.append(partial(getattr(library, name), x, *weights))
        other.append(_by_torch(layer, x))
    times: list[tuple[float, float]] = []
    for _ in range(_ROUNDS):
        spent = _seconds(few)
        times.append((spent, _seconds(other, max(_HOPELESS * spent, _BRIEF))))
        # The first meet memory that was never read.
        mine, theirs = map(min, zip(*times[1:] or times, strict=True))
        if len(times) > 2 and max(mine, theirs) > _HOPELESS * min(mine, theirs):
            break
    return mine, theirs


def _seconds(products: Sequence[Product], limit: float = inf) -> float:
    """What all of *products* take; or what those took after which it was more than *limit*."""
    start = time.perf_counter()
    for product in products:
        product()
        if (spent := time.perf_counter() - start) > limit:
            break
    return spent


def _sample(model: nn.Module, dtype: torch.dtype) -> Iterable[QuantizedLinear | nn.Linear]:
    """Layers that *model* multiplies *dtype* by: as many as no cache holds."""
    size = 0
    for layer in model.modules():
        if not isinstance(layer, nn.Linear | Int8Linear | Int4Linear):
            continue
        name, weights = _operands(layer)
        known = name != "int8_rows" or weights[0].dtype == torch.int8
        whole = all(weight.is_contiguous() and weight.numel() for weight in weights)
        if known and whole and weights[-1].dtype == dtype and size < _BYTES:
            size += weights[0].nbytes
            yield layer


def _operands(layer: nn.Module) -> tuple[str, list[Tensor]]:
    """Which product of :class:`~..few_rows.library.Library`, and what it takes beside the inputs."""
    if isinstance(layer, Int4Linear):
        return "int4_rows", [layer.packed, layer.levels]
    if isinstance(layer, Int8Linear):
        return "int8_rows", [layer.quantized, layer.scale]
    return "float_rows", [layer.get_parameter("weight").detach()]


def _by_torch(layer: nn.Module, x: Tensor) -> Product:
    """The kernel that a program would call otherwise, its weights packed if it takes them so."""
    if isinstance(layer, Int4Linear):
        return partial(int4_product, layer, x, aten=aten_packs_alike())
    if isinstance(layer, Int8Linear):
        if not digits.takes(x.dtype, layer.in_features):
            return partial(int8_product, layer, x)
        # Without what makes digits of the inputs: a program does that in a loop of its own.
        made = digits.stored(x.round()).repeat(digits.DIGITS[x.dtype], 1)
        one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
        return partial(digits.sums, made, digits.pack(layer.quantized), one, zero)
    weight = layer.get_parameter("weight").detach()
    if x.dtype not in onednn_dtypes():
        return partial(functional.linear, x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
    return partial(torch.ops.mkldnn._linear_pointwise, x, packed, None, "none", [], "")
