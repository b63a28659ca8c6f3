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
    rest, parts = wide / largest * 127, []
    for _ in range(NUM_TERMS[rows.dtype]):
        term = rest.round()
        # Sums of integers are exact in float64, and are rounded once.
        parts.append((term.double() @ quantized.double().T).float())
        rest = (rest - term) * BASE
    total = parts[-1]
    for part in reversed(parts[:-1]):
        total = part + total * (1 / BASE)
    product = (total * (largest / 127) * scale.float()).to(rows.dtype)
    return product.where(rows.isfinite().all(dim=1, keepdim=True), torch.nan)
