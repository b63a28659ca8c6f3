"""Whether the decoder or the host chooses."""

from typing import TYPE_CHECKING, cast

from torch import Tensor

from ..cache.slots import Slots
from ..history import History
from ..protocols import Decoder, SamplesOnDevice, SamplesTokens
from ..sampling.pipeline import SamplingPipeline
from ..scores import Scores

if TYPE_CHECKING:
    from ..placement import Placement


def decoder_samples(slots: Slots, pipeline: SamplesTokens, rows: int) -> bool:
    """Whether the forwards of a decoder can choose as *pipeline* does, in a run over so many *rows*."""
    if not slots.may_choose or not isinstance(pipeline, SamplingPipeline):
        return False
    decoder = cast(SamplesOnDevice, slots.decoder)
    # It may have got or lost such forwards since the slots were made.
    return bool(decoder.sampling_widths) and decoder.can_sample(pipeline.processors, pipeline.sampler, rows)


def placement_of(decoder: Decoder, pipeline: SamplingPipeline) -> "Placement":
    """Where the parts of *pipeline* run, as *decoder* says."""
    from ..placement import Place, Placement

    if isinstance(decoder, SamplesOnDevice):
        return decoder.explain(pipeline.processors, pipeline.sampler)
    why = "the decoder has no forwards that choose"
    return Placement(tuple(Place(repr(part), "host", why) for part in (*pipeline.stages, pipeline.sampler)))


def feed_and_sample(
    slots: Slots, pipeline: SamplesTokens, history: History, need: Tensor
) -> tuple[Tensor, Scores]:
    """
    What may follow the last token of each row, chosen by the decoder where it can.

    Args:
        slots: The decoder's; to be locked until the scores have been read.

        pipeline: The chain and the sampler.

        history: The rows; width 1.

        need: 1 for rows that need a choice, 0 for idle ones, ``[rows]``.

    Returns:
        As *pipeline* does, ids ``[rows, 1]`` and scores.
    """
    length = history.length[:, 0]
    if decoder_samples(slots, pipeline, len(need)):
        chosen, raw = slots.feed_and_sample(history, length, need)
        if chosen is not None:
            processed = cast(SamplingPipeline, pipeline).scores(raw, history)
            return chosen, processed
        return pipeline(raw.logits, history)
    return pipeline(slots.feed(history.ids[:, 0], length, need), history)
