"""Log-probabilities of tokens."""

import math
from typing import Any

import attrs
import numpy as np
import torch
from attrs import validators
from torch import Tensor

from ..sampling.top_tokens import top_tokens
from ..validation import a_whole_number, as_whole, is_whole


@attrs.frozen
class Logprobs:
    """
    A request for log-probabilities of each new token and of the top tokens in its place.

    They are those of the softmax of the logits at one stage of the chain. A token that is forbidden
    at that stage has ``-inf``. If NaN or ``inf`` is among the logits, all others have NaN.

    >>> Logprobs(top=5, stage="TopK")
    Logprobs(top=5, stage='TopK')
    """

    top: int = attrs.field(default=0, converter=as_whole, validator=[a_whole_number, validators.ge(0)])
    """Number of top tokens to return besides the sampled one; at most the vocabulary."""

    stage: str | int = attrs.field(default="raw", converter=as_whole)
    """
    ``"raw"``: the decoder's logits. ``"processed"``: the logits that the token was sampled from, at
    the end of the chain. Or one stage of the chain, after which to read them: its class name, such as
    ``"TopK"``, or its index, 0 for the first, if several have that class.
    """

    @stage.validator
    def _check_stage(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not (isinstance(value, str) or is_whole(value)):
            raise TypeError(f"'stage' must be a stage's name or its place in the chain: got {value!r}")


@attrs.frozen
class TokenLogprob:
    """The log-probability of one token, and of the top tokens in its place."""

    id: int
    """The token."""

    logprob: float
    """Natural logarithm of its probability; ``-inf`` for a forbidden token."""

    rank: int
    """1 for the most probable token; tokens of equal probability share the best rank among them."""

    top: tuple[tuple[int, float], ...] = ()
    """
    The requested number of top tokens with their log-probabilities, in descending order; ties by
    lowest id, as in :class:`~..sampling.greedy.Greedy`.
    """


def token_logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """
    The log-probability and rank of one token.

    Ranks and top tokens are read from the logits themselves; logarithms are taken in float64. The
    result depends on the column's own logits only.

    Args:
        logits: ``[vocab]`` float32 or float64.

        token: The token's id.

        top: Number of top tokens to include.
    """
    scores = logits.numpy(force=True)
    best = scores.max()
    total = _log_total(logits, float(best))

    def logprob(one: int) -> float:
        return -math.inf if scores[one] == -math.inf else float(scores[one]) - float(best) - total

    rank = 1 + int(np.count_nonzero(scores > scores[token]))
    likely = top_tokens(logits, top).tolist() if top else []
    return TokenLogprob(token, logprob(token), rank, tuple((one, logprob(one)) for one in likely))


def _log_total(logits: Tensor, best: float) -> float:
    """The logarithm of the sum of all exponentials, relative to that of the *best* logit."""
    # Terms below e⁻⁷⁰⁰ of the largest add nothing; exponentials of -inf are slow.
    relative = logits.to(torch.float64, copy=True).sub_(best).clamp_(min=-700.0).exp_()
    # Numpy's summation order is fixed; torch's depends on the number of threads.
    return math.log(relative.numpy(force=True).sum())
