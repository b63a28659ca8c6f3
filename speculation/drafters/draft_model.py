"""Guessing with a smaller model."""

import attrs
import numpy as np
import torch

from ...decoding.cache.slots import Slots
from ...decoding.engine.feed_and_sample import feed_and_sample
from ...decoding.history import History
from ...decoding.protocols import Decoder, DecoderShape, Draft, SamplesTokens
from .draft_decoder import a_decoder, check_rows


@attrs.frozen(eq=False)
class DraftModel:
    """
    Guess with *decoder*, a smaller model of the same vocabulary.

    Its logits go through the target's own chain and sampler, at the position and with the
    noise that the target is going to meet. What it missed since it last drafted (the tokens
    that the target chose, a round without a draft) it is fed first; see
    :class:`~decodekit.decoding.cache.slots.Slots`.
    """

    decoder: Decoder = attrs.field(validator=a_decoder)
    """Of at least as many rows as there are prompts. A row beyond its positions gets no draft."""

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless this can draft for *target*."""
        own = self.decoder.shape
        if own.vocab_size != target.vocab_size:
            raise ValueError(
                f"the draft's vocabulary must be the target's, {target.vocab_size}: got {own.vocab_size}"
            )
        check_rows(self.decoder, target)

    def propose(self, history: History, budget: torch.Tensor, sample: SamplesTokens) -> Draft:
        """Guess up to *budget* tokens ``[batch]`` of each row, one forward of all rows a token."""
        slots, ids = Slots.of(self.decoder), history.ids.clone()
        # A few numbers for each row: numpy takes a fraction of torch's time for them.
        tokens, reached = ids[:, 0].numpy(), history.length[:, 0].numpy()
        # A guess's predecessor is fed at its position, so the cache bounds the guesses too.
        left = np.minimum(budget.numpy(), self.decoder.shape.max_length + 1 - reached)
        guesses, drawn_from = [], []
        while (active := left > 0).any():
            length = torch.from_numpy(reached)
            with slots.lock:
                before = History(ids, length[:, None], history.prompt, history.random_stream)
                need = torch.from_numpy(active.astype(np.int64))
                chosen, scores = feed_and_sample(slots, sample, before, need)
                if sample.draft_scores:
                    # What they are made of may lie where the next forward writes.
                    drawn_from.append(scores.logits[:, 0].clone())
            guess = np.where(active, chosen[:, 0].numpy(), -1)
            guesses.append(torch.from_numpy(guess))
            # Where no token is left there is nothing to feed next.
            (rows,) = (guess >= 0).nonzero()
            tokens[rows, reached[rows]] = guess[rows]
            reached, left = reached + (guess >= 0), np.where(guess >= 0, left - 1, 0)
        if not guesses:
            return Draft(budget.new_empty(len(budget), 0))
        return Draft(torch.stack(guesses, dim=1), torch.stack(drawn_from, dim=1) if drawn_from else None)
