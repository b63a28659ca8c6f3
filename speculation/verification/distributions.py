"""Shared parts of the verifications that compare distributions."""

import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.protocols import Draft
from ...decoding.sampling import noise
from ...decoding.scores import Scores


def target_distribution(scores: Scores) -> Tensor:
    """Target distribution, ``[batch, k + 1, vocab]`` float64; all 0 where no token is left."""
    return _softmax(scores.logits)


def draft_distribution(draft: Draft, vocab: int) -> Tensor:
    """
    Draft distribution, ``[batch, k + 1, vocab]`` float64; 0 in columns without a draft token.

    The last column never has one. There the residual is the whole target distribution.
    """
    if draft.parents is not None:
        raise ValueError("distributions are compared along a chain: got a tree")
    has_draft = (draft.ids >= 0)[..., None]
    if draft.scores is None:
        distribution = torch.nn.functional.one_hot(draft.ids.clamp(min=0), vocab).double()
    else:
        distribution = _softmax(draft.scores)
    return torch.nn.functional.pad(torch.where(has_draft, distribution, 0.0), (0, 0, 0, 1))


def _softmax(logits: Tensor) -> Tensor:
    # All -inf, or NaN logits, give NaN.
    return logits.cpu().double().softmax(dim=-1).nan_to_num_(nan=0.0)


def token_probabilities(distribution: Tensor, draft: Draft) -> Tensor:
    """Probability of each draft token, ``[batch, k]``, under ``[batch, k + 1, vocab]``; 0 for -1."""
    probability = distribution[:, :-1].gather(-1, draft.ids.clamp(min=0)[..., None]).squeeze(-1)
    return probability.masked_fill(draft.ids < 0, 0.0)


def next_token(
    residual: Tensor, distribution: Tensor, draft: Draft, choices: Tensor, window: History
) -> Tensor:
    """
    Sample the token after the accepted ones.

    Args:
        residual: Residual distribution, not normalised, ``[batch, vocab]``.

        distribution: Target distribution, used where the residual rounds to 0, ``[batch, vocab]``.

        draft: The draft tokens.

        choices: The target's sampled tokens, ``[batch, k + 1]``: rows without a draft take the first.

        window: The tokens before each column.

    Returns:
        ``[batch]``: never a token of probability 0, and -1 where no token is left.
    """
    has_draft, start = draft.ids[:, 0] >= 0, window.length[:, 0]
    left = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, distribution)
    left = torch.where(has_draft[:, None], left, 0.0)
    drawn = noise.draw(window.random_stream, start, noise.RESIDUAL, torch.zeros_like(start), left)
    return torch.where(has_draft, drawn, choices[:, 0])


def at_column(values: Tensor, column: Tensor) -> Tensor:
    """Select one column per row of values ``[batch, columns, ...]``: ``[batch, ...]``."""
    return values[torch.arange(len(column)), column]
