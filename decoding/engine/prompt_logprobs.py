"""Log-probabilities of prompts."""

import torch
from torch import Tensor

from ..history import History
from ..results.logprobs import TokenLogprob
from ..token_feeder import TokenFeeder
from .logprob_recorder import LogprobRecorder


def score_prompts(
    feeder: TokenFeeder, history: History, recorder: LogprobRecorder, exact_width: bool
) -> list[list[TokenLogprob | None]]:
    """
    The log-probabilities of the prompts' tokens, None for each prompt's first.

    They are fed in forwards of the scored width, even if they are cached already, since the cache
    holds no logits. The cache stays valid, and other users of the decoder may run between the
    forwards.

    Args:
        feeder: Feeds the decoder.

        history: The prompts, width 1.

        recorder: Computes the log-probabilities.

        exact_width: As in a generation.
    """
    length = history.length[:, 0]
    found: list[list[TokenLogprob | None]] = [[None] for _ in length]
    width = feeder.shape.scored_width
    # The last token has no successor in the prompt.
    for start in range(0, int(length.max()) - 1, width):
        end = (length - 1).clamp(max=start + width)
        need = (end - start).clamp(min=0)
        seen = history.at(_lengths(start, end, int(need.max())))
        ids = [history.ids[row, 0, start + 1 : stop + 1].tolist() for row, stop in enumerate(end.tolist())]
        with feeder.lock, torch.no_grad():
            fed = feeder.feed(history, end, need, exact_width=exact_width)
            feeder.logits_in_use = True
            try:
                chunk = recorder.of_prompt(fed.logits, seen, ids)
            finally:
                feeder.logits_in_use = False
        for row, logprobs in zip(found, chunk, strict=True):
            row += logprobs
    return found


def _lengths(start: int, end: Tensor, width: int) -> Tensor:
    """How many tokens precede each column of a chunk, ``[batch, width]``; clamped at a row's last."""
    return (start + 1 + torch.arange(width)).minimum(end[:, None]).clamp(min=1)
