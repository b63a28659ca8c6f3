"""What a token's probability was."""

from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from .likeliest import likeliest
from .whole_numbers import a_whole_number, is_whole


def _as_python(value: Any) -> Any:
    """A whole number of numpy's as one of Python's; anything else as it is, for a validator to refuse."""
    return int(value) if is_whole(value) else value


@attrs.frozen
class Logprobs:
    """
    A request for log-probabilities: of each new token, and of the likeliest in its place.

    They are those of the softmax of the logits at one stage of the chain. Whatever the stage,
    a token that has been forbidden by then has ``-inf``; with NaN or ``inf`` among the logits
    nothing else has a probability, and the others' are NaN.

    >>> Logprobs(top=5, stage="TopK")
    Logprobs(top=5, stage='TopK')
    """

    top: int = attrs.field(default=0, converter=_as_python, validator=[a_whole_number, validators.ge(0)])
    """How many of the likeliest tokens to tell besides the one chosen; at most the vocabulary."""

    stage: str | int = attrs.field(default="raw", converter=_as_python)
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
    for; of equals the lowest id, as :class:`~.greedy.Greedy` has it.
    """


def token_logprobs(logits: Tensor, ids: Tensor, top: int) -> list[TokenLogprob]:
    """
    What logits say of a token each.

    Ranks and the likeliest are read from the logits themselves. The logarithms are taken in
    float64, each row's by itself, so that they do not depend on the other rows.

    Args:
        logits: ``[n, vocab]`` of any precision.

        ids: The tokens, ``[n]``.

        top: How many of the likeliest to tell besides.
    """
    logits = logits.cpu()
    best = likeliest(logits, top) if top else ids.new_empty(len(ids), 0)
    shown = torch.cat([ids[:, None], best], dim=-1)
    shown_logits = logits.gather(-1, shown)
    # A softmax sums each row by itself; a logsumexp splits a single one among threads.
    logprobs = logits.double().log_softmax(dim=-1).gather(-1, shown)
    logprobs = logprobs.masked_fill(shown_logits == -torch.inf, -torch.inf)
    ranks = (logits > shown_logits[:, :1]).sum(dim=-1) + 1
    return [
        TokenLogprob(token, logprob, rank, tuple(zip(likely, theirs, strict=True)))
        for (token, *likely), (logprob, *theirs), rank in zip(
            shown.tolist(), logprobs.tolist(), ranks.tolist(), strict=True
        )
    ]
