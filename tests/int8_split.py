"""What the int8 kernel computes, in plain operations."""

import torch
from torch import Tensor

BASE = 254
NUM_TERMS = {torch.bfloat16: 2, torch.float16: 2, torch.float32: 3}


def split_product(rows: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
    """
    ``rows @ (quantized * scale).T`` by exact sums of integers.

    An input is ``(t0 + t1 / 254 + t2 / 254**2) / 127`` times its row's largest magnitude, with terms from
    -127 to 127.

    Args:
        rows: ``[rows, in]``.

        quantized: ``[out, in]`` int8.

        scale: ``[out]``, of the inputs' dtype.

    Returns:
        ``[rows, out]`` of the inputs' dtype; NaN in rows with an input that is not finite.
    """
    wide = rows.float()
    largest = wide.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    rest, terms = wide / largest * 127, NUM_TERMS[rows.dtype]
    total = torch.zeros((), dtype=torch.float64)
    for _ in range(terms):
        term = rest.round()
        # Integers, which float64 holds exactly; they are rounded once.
        total = total * BASE + term.double() @ quantized.double().T
        rest = (rest - term) * BASE
    product = ((total * (1 / (127 * BASE ** (terms - 1)))).float() * largest * scale.float()).to(rows.dtype)
    return product.where(rows.isfinite().all(dim=1, keepdim=True), torch.nan)
