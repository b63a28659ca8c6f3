"""Drafting with a smaller model."""

import attrs
import numpy as np
import torch

from ...decoding.cache.slots import feeder_of
from ...decoding.engine.feed_and_sample import feed_and_sample
from ...decoding.history import History
from ...decoding.optional_protocols import AnyDecoder, GoesOn
from ...decoding.protocols import DecoderShape, Draft, SamplesTokens
from .draft_decoder import a_decoder_or_several, check_rows


@attrs.frozen(eq=False)
class DraftModel:
    """
    Draft with *decoder*, a smaller model of the same vocabulary.

    Its logits go through the target's chain and sampler, with the noise that the target uses at
    the same position. Tokens it has not seen since its last draft (those the target sampled, steps
    without a draft) are fed first; see :class:`~decodekit.decoding.cache.slots.Slots`.
    """

    decoder: AnyDecoder = attrs.field(validator=a_decoder_or_several)
    """
    The draft model, with at least as many rows as prompts. Rows beyond its positions get no draft. For a
    target under guidance, the same guidance of the draft model (:class:`~decodekit.decoding.Guided`) is best.
    """

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless the decoder can draft for *target*."""
        own = self.decoder.shape
        if own.vocab_size != target.vocab_size:
            raise ValueError(
                f"the draft's vocabulary must be the target's, {target.vocab_size}: got {own.vocab_size}. "
                "CommonTokens drafts with the tokens that two vocabularies share"
            )
        check_rows(self.decoder, target)

    def catch_up(self, history: History, rows: torch.Tensor, most: int) -> torch.Tensor:
        """See :class:`~decodekit.decoding.optional_protocols.CatchesUp`."""
        feeder = feeder_of(self.decoder)
        positions, widths = self.decoder.shape.max_length, self.decoder.shape.widths
        # The target adds a token a step, so one that is fed a token a step never catches up.
        room = max(most, next((width for width in widths if width > 1), most))
        length = history.length[:, 0].clamp(max=positions)
        # What the cache cannot hold is not drafted for, so that nothing is lacking.
        fits = history.length[:, 0] <= positions
        with feeder.lock:
            behind = feeder.missing(history, length) * fits
            late = rows & (behind > most)
            if late.any():
                feeder.feed(history, length, late.long(), most=room)
                behind = feeder.missing(history, length) * fits
        return behind

    def propose(self, history: History, budget: torch.Tensor, sample: SamplesTokens) -> Draft:
        """Propose up to *budget* tokens ``[batch]`` for each row, one forward of all rows per token."""
        return self._propose(history, budget, sample, None)

    def propose_while(
        self, history: History, budget: torch.Tensor, sample: SamplesTokens, goes_on: GoesOn
    ) -> Draft:
        """See :class:`~decodekit.decoding.optional_protocols.DraftsWhile`."""
        return self._propose(history, budget, sample, goes_on)

    def _propose(
        self, history: History, budget: torch.Tensor, sample: SamplesTokens, goes_on: GoesOn | None
    ) -> Draft:
        feeder, ids = feeder_of(self.decoder), history.with_room(int(budget.max())).ids
        # For a few numbers per row numpy takes a fraction of torch's time.
        tokens, reached = ids[:, 0].numpy(), history.length[:, 0].numpy()
        # A draft token's predecessor is fed at its position, so the cache bounds the draft too.
        left = np.minimum(budget.numpy(), self.decoder.shape.max_length + 1 - reached)
        drafted, scores_drawn_from = [], []
        while (active := left > 0).any():
            length = torch.from_numpy(reached)
            with feeder.lock:
                before = History(ids, length[:, None], history.prompt, history.random_stream)
                need = torch.from_numpy(active.astype(np.int64))
                sampled, scores = feed_and_sample(feeder, sample, before, need)
                if sample.draft_scores:
                    # The logits may be a view of memory that the next forward overwrites.
                    scores_drawn_from.append(scores.logits[:, 0].clone())
                next_ids = np.where(active, sampled[:, 0].numpy(), -1)
                on = next_ids >= 0
                if goes_on is not None:
                    on &= goes_on(torch.from_numpy(next_ids), scores).numpy()
            drafted.append(torch.from_numpy(next_ids))
            # A row without any token left has nothing to feed next.
            (rows,) = (next_ids >= 0).nonzero()
            tokens[rows, reached[rows]] = next_ids[rows]
            reached, left = reached + (next_ids >= 0), np.where(on, left - 1, 0)
        if not drafted:
            return Draft(budget.new_empty(len(budget), 0))
        return Draft(
            torch.stack(drafted, dim=1), torch.stack(scores_drawn_from, dim=1) if scores_drawn_from else None
        )
