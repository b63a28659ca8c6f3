"""What a token's probability was."""

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
    A request for log-probabilities: of each new token, and of the likeliest in its place.

    They are those of the softmax of the logits at one stage of the chain. A token that has been
    forbidden by then has ``-inf``. Where NaN or ``inf`` is among the logits, all others have NaN.

    >>> Logprobs(top=5, stage="TopK")
    Logprobs(top=5, stage='TopK')
    """

    top: int = attrs.field(default=0, converter=as_whole, validator=[a_whole_number, validators.ge(0)])
    """How many of the likeliest tokens to tell besides the one chosen; at most the vocabulary."""

    stage: str | int = attrs.field(default="raw", converter=as_whole)
    """
    ``"raw"``: what the decoder said. ``"processed"``: what the token was chosen from, at the end
    of the chain. Or after one stage of the chain: its class's name, such as ``"TopK"``, or where
    several are of one class its place, 0 for the first.
    """

    @stage.validator
    def _check_stage(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not (isinstance(value, str) or is_whole(value)):
            raise TypeError(f"'stage' must be a stage's name or its place in the chain: got {value!r}")


@attrs.frozen
class TokenLogprob:
    """The log-probability of one token, and of the likeliest in its place."""

    id: int
    """The token."""

    logprob: float
    """Natural logarithm of its probability; ``-inf`` for a token that was forbidden."""

    rank: int
    """1 for the likeliest; tokens of equal probability share the best rank among them."""

    top: tuple[tuple[int, float], ...] = ()
    """
    The likeliest tokens and their log-probabilities, the likeliest first, as many as were asked
    for; of equals the lowest id, as :class:`~..sampling.greedy.Greedy` has it.
    """


def token_logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """
    What logits say of one token.

    Ranks and the likeliest are read from the logits themselves; the logarithms are taken in
    float64. All of it depends on nothing but the column's own logits.

    Args:
        logits: ``[vocab]`` float32 or float64.

        token: Which one.

        top: How many of the likeliest to tell besides.
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
    # What is e⁻⁷⁰⁰ of the best adds nothing; exponentials of -inf take their time.
    relative = logits.to(torch.float64, copy=True).sub_(best).clamp_(min=-700.0).exp_()
    # Numpy adds up in an order of its own, torch in one that the number of threads decides.
    return math.log(relative.numpy(force=True).sum())
