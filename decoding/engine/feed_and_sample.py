"""Whether the decoder or the host chooses."""

from typing import cast

from torch import Tensor

from ..cache.slots import Slots
from ..history import History
from ..placement import Place, Placement
from ..protocols import Chooses, Decoder, SamplesTokens
from ..sampling.pipeline import SamplingPipeline
from ..scores import Scores


def decoder_chooses(slots: Slots, choose: SamplesTokens, rows: int) -> bool:
    """Whether the forwards of a decoder can choose as *choose* does, in a run over so many *rows*."""
    if not slots.may_choose or not isinstance(choose, SamplingPipeline):
        return False
    decoder = cast(Chooses, slots.decoder)
    # It may have got or lost such forwards since the slots were made.
    return bool(decoder.choosing_widths) and decoder.chooses(choose.processors, choose.sampler, rows)


def placement_of(decoder: Decoder, choose: SamplingPipeline) -> Placement:
    """Where the parts of *choose* run, as *decoder* says."""
    if isinstance(decoder, Chooses):
        return decoder.explain(choose.processors, choose.sampler)
    why = "the decoder has no forwards that choose"
    return Placement(tuple(Place(repr(part), "host", why) for part in (*choose.stages, choose.sampler)))


def feed_and_choose(
    slots: Slots, choose: SamplesTokens, history: History, need: Tensor
) -> tuple[Tensor, Scores]:
    """
    What may follow the last token of each row, chosen by the decoder where it can.

    Args:
        slots: The decoder's; to be locked until the scores have been read.

        choose: The chain and the sampler.

        history: The rows; width 1.

        need: 1 for rows that need a choice, 0 for idle ones, ``[rows]``.

    Returns:
        As *choose* does, ids ``[rows, 1]`` and scores.
    """
    length = history.length[:, 0]
    if decoder_chooses(slots, choose, len(need)):
        chosen, raw = slots.feed_choosing(history, length, need)
        if chosen is not None:
            processed = cast(SamplingPipeline, choose).scores(raw, history)
            return chosen, processed
        return choose(raw.logits, history)
    return choose(slots.feed(history.ids[:, 0], length, need), history)
