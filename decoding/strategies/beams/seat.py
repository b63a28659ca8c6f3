"""The rows of one prompt among those of a decoder."""

import attrs
from torch import Tensor

from ...history import History
from ...sampling.pipeline import SamplingPipeline
from .prompt_search import PromptSearch


@attrs.define(eq=False)
class Seat:
    """The rows of one prompt's beams."""

    number: int
    search: PromptSearch
    prompt: int
    """The prompt's tokens."""

    length: int
    """The tokens of each beam, the prompt's included."""

    columns: list[int]
    """The column of each beam that goes on."""

    pipeline: SamplingPipeline
    """Its processors are used, not its sampler; of this prompt alone."""

    fed: bool = False
    """Whether the prompt has been fed."""


@attrs.frozen(eq=False)
class Scored:
    """What a step says of one seat."""

    log_probs: Tensor
    """The log-softmax of the logits, ``[seats, beams, vocab]``."""

    processed: Tensor
    """The same after the processors."""

    history: History
    row: int
    """The seat's row in these."""
