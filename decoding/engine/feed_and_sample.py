"""Sampling on the device or on the host."""

from typing import TYPE_CHECKING, cast

from torch import Tensor

from ..cache.slots import Slots
from ..history import History
from ..optional_protocols import AnyDecoder
from ..protocols import SamplesOnDevice, SamplesTokens
from ..sampling.pipeline import SamplingPipeline
from ..scores import Scores
from ..token_feeder import TokenFeeder
from .samples_by_row import SamplesByRow

if TYPE_CHECKING:
    from ..sampling_placement import Placement


def feeder_samples(feeder: TokenFeeder, pipeline: SamplesTokens, rows: int) -> bool:
    """Whether the forwards of *feeder* can sample as *pipeline* does, in a run over *rows* rows."""
    if not isinstance(feeder, Slots) or not feeder.may_sample or not isinstance(pipeline, SamplingPipeline):
        return False
    decoder = cast(SamplesOnDevice, feeder.decoder)
    # Sampling forwards may have been added or removed since the slots were made.
    return bool(decoder.sampling_widths) and decoder.can_sample(pipeline.processors, pipeline.sampler, rows)


def placement_of(decoder: AnyDecoder, pipeline: SamplingPipeline) -> "Placement":
    """The placement of the parts of *pipeline* on *decoder*."""
    from ..sampling_placement import Place, Placement

    if isinstance(decoder, SamplesOnDevice):
        return decoder.explain(pipeline.processors, pipeline.sampler)
    why = "the decoder has no sampling forwards"
    return Placement(tuple(Place(repr(part), "host", why) for part in (*pipeline.stages, pipeline.sampler)))


def sample_rows(
    pipeline: SamplesTokens, logits: Tensor, history: History, need: Tensor
) -> tuple[Tensor, Scores]:
    """
    Sample with *pipeline* where *need* is above 0, ``[rows]``; elsewhere the result is undefined.

    Logits of idle rows may be those of padding, which take long to sample from.
    """
    # The scores of every row are read then.
    if pipeline.draft_scores or not isinstance(pipeline, SamplingPipeline | SamplesByRow):
        return pipeline(logits, history)
    rows = need.nonzero()[:, 0].tolist()
    return pipeline(logits, history, rows if len(rows) < len(need) else None)


def feed_and_sample(
    feeder: TokenFeeder, pipeline: SamplesTokens, history: History, need: Tensor
) -> tuple[Tensor, Scores]:
    """
    Sample the next token of each row, on the device if possible.

    Args:
        feeder: Feeds the decoder; hold its lock until the scores have been read.

        pipeline: The chain and the sampler.

        history: The rows; width 1.

        need: 1 for active rows, 0 for idle ones, ``[rows]``.

    Returns:
        As of *pipeline*: ids ``[rows, 1]`` and scores.
    """
    fed = feeder.feed(history, history.length[:, 0], need, sample=feeder_samples(feeder, pipeline, len(need)))
    if fed.chosen is None:
        return sample_rows(pipeline, fed.logits, history, need)
    return fed.chosen, cast(SamplingPipeline, pipeline).scores(fed.raw, history)
