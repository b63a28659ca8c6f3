"""The equation of classifier-free guidance."""

import torch
from torch import Tensor


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """
    Logits that are pushed from the *unconditional* towards the *conditional* ones.

    Sanchez et al., 2023, `Stay on Topic with Classifier-Free Guidance
    <https://arxiv.org/abs/2306.17806>`_, equation 7, on log-probabilities.

    Args:
        conditional: Logits after the prompt, ``[rows, columns, vocab]``; not modified.

        unconditional: Those after the negative prompt, of the same shape; not modified.

        scale: 1 leaves the conditional distribution; typically 1.25 to 3.

    Returns:
        ``unconditional + scale * (conditional - unconditional)`` of the log-softmax of both; ``-inf`` where
        either side has it. At scale 1, the log-softmax of the conditional side alone.

    >>> import torch
    >>> guide(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0]), scale=3.0).diff()
    tensor([-4.])
    """
    towards, away = conditional.log_softmax(dim=-1), unconditional.log_softmax(dim=-1)
    if scale == 1:
        return towards
    forbidden = (towards == -torch.inf) | (away == -torch.inf)
    return (away + scale * (towards - away)).masked_fill(forbidden, -torch.inf)
