"""Guessing with a smaller model."""

import attrs
import torch

from ..decoding.history import History
from ..decoding.protocols import Choice, Decoder, DecoderShape, Draft
from ..decoding.slots import Slots
from .draft_decoder import a_decoder, check_rows


@attrs.frozen(eq=False)
class DraftModel:
    """
    Guess with *decoder*, a smaller model of the same vocabulary.

    Its logits go through the target's own chain and selection, at the position and with the
    noise that the target is going to meet. What it missed since it last drafted (the tokens
    that the target chose, a round without a draft) it is fed first; see
    :class:`~decodekit.decoding.slots.Slots`.
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

    def propose(self, history: History, budget: torch.Tensor, choose: Choice) -> Draft:
        """Guess up to *budget* tokens ``[batch]`` of each row, one forward of all rows a token."""
        slots = Slots.of(self.decoder)
        length = history.length[:, 0]
        # A guess's predecessor is fed at its position, so the cache bounds the guesses too.
        budget = budget.minimum(self.decoder.shape.max_length + 1 - length).clamp(min=0)
        ids, guesses, drawn_from = history.ids.clone(), [], []
        for i in range(int(budget.max())):
            reached, active = length + budget.clamp(max=i), budget > i
            with slots.lock:
                logits = slots.feed(ids[:, 0], reached, active.long())
                chosen, scores = choose(logits, attrs.evolve(history, ids=ids, length=reached[:, None]))
                if choose.draft_scores:
                    # What they are made of may lie where the next forward writes.
                    drawn_from.append(scores.logits[:, 0].clone())
            guess = torch.where(active, chosen[:, 0], -1)
            # Where no token is left there is nothing to feed next.
            budget = torch.where(active & (guess < 0), i, budget)
            guessed = guess >= 0
            ids[guessed, 0, reached[guessed]] = guess[guessed]
            guesses.append(guess)
            if not (budget > i + 1).any():
                break
        if not guesses:
            return Draft(budget.new_empty(len(budget), 0))
        return Draft(torch.stack(guesses, dim=1), torch.stack(drawn_from, dim=1) if drawn_from else None)
