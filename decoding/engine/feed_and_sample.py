"""Sampling on the device or on the host."""

from typing import TYPE_CHECKING, cast

from torch import Tensor

from ..cache.slots import Slots
from ..history import History
from ..protocols import Decoder, SamplesOnDevice, SamplesTokens
from ..sampling.pipeline import SamplingPipeline
from ..scores import Scores

if TYPE_CHECKING:
    from ..sampling_placement import Placement


def decoder_samples(slots: Slots, pipeline: SamplesTokens, rows: int) -> bool:
    """Whether the decoder's forwards can sample as *pipeline* does, in a run over *rows* rows."""
    if not slots.may_sample or not isinstance(pipeline, SamplingPipeline):
        return False
    decoder = cast(SamplesOnDevice, slots.decoder)
    # Sampling forwards may have been added or removed since the slots were made.
    return bool(decoder.sampling_widths) and decoder.can_sample(pipeline.processors, pipeline.sampler, rows)


def placement_of(decoder: Decoder, pipeline: SamplingPipeline) -> "Placement":
    """The placement of the parts of *pipeline* on *decoder*."""
    from ..sampling_placement import Place, Placement

    if isinstance(decoder, SamplesOnDevice):
        return decoder.explain(pipeline.processors, pipeline.sampler)
    why = "the decoder has no sampling forwards"
    return Placement(tuple(Place(repr(part), "host", why) for part in (*pipeline.stages, pipeline.sampler)))


def feed_and_sample(
    slots: Slots, pipeline: SamplesTokens, history: History, need: Tensor
) -> tuple[Tensor, Scores]:
    """
    Sample the next token of each row, on the device if possible.

    Args:
        slots: The decoder's slots; hold their lock until the scores have been read.

        pipeline: The chain and the sampler.

        history: The rows; width 1.

        need: 1 for active rows, 0 for idle ones, ``[rows]``.

    Returns:
        As of *pipeline*: ids ``[rows, 1]`` and scores.
    """
    length = history.length[:, 0]
    if decoder_samples(slots, pipeline, len(need)):
        sampled, raw = slots.feed_and_sample(history, length, need)
        if sampled is not None:
            processed = cast(SamplingPipeline, pipeline).scores(raw, history)
            return sampled, processed
        return pipeline(raw.logits, history)
    return pipeline(slots.feed(history.ids[:, 0], length, need), history)
