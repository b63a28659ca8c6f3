"""Where tokens stand in a row's order."""

from torch import Tensor


def kth_largest(logits: Tensor, k: int) -> Tensor:
    """
    The *k*-th largest of each row.

    Args:
        logits: ``[..., n]``.

        k: At least 1; beyond *n* the smallest counts.

    Returns:
        ``[..., 1]``.
    """
    if k == 1:  # many times faster than a search for several
        return logits.amax(dim=-1, keepdim=True)
    return logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
