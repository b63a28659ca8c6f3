"""The warning about parts that can have no effect."""

import warnings

import attrs
import torch

from ..history import History
from ..optional_protocols import KeepsArgmax, takes_argmax
from ..protocols import Processor
from ..sampling.pipeline import SamplingPipeline


class NoEffectWarning(UserWarning):
    """A part of a generator can have no effect on its tokens, such as a temperature beside ``Greedy``."""


def warn_of_no_effect(pipeline: SamplingPipeline) -> None:
    """
    Warn of the final stages that keep the argmax, beside a sampler that takes it.

    A stage before one that may change the argmax, such as a penalty, matters and is not named. Nor is one
    at its neutral value, which is written to have none.
    """
    if not takes_argmax(pipeline.sampler):
        return
    idle: list[str] = []
    for stage in reversed(pipeline.stages):
        if not (isinstance(stage, KeepsArgmax) and stage.keeps_argmax):
            break
        if not _is_neutral(stage):
            idle.append(repr(stage))
    if idle:
        names, verb = " and ".join(reversed(idle)), "have" if len(idle) > 1 else "has"
        warnings.warn(
            f"{names} {verb} no effect beside {pipeline.sampler!r}, which takes the largest logit: leave out "
            "what has none, or sample with Sample()",
            NoEffectWarning,
            stacklevel=_CALLER,
        )


def warn_of_equal_samples(pipeline: SamplingPipeline, num_samples: int) -> None:
    """
    Warn of several samples of a prompt that all take the largest raw logit.

    Processors that may change the argmax may differ by row, or draw random numbers: nothing is said of them.
    """
    if num_samples > 1 and takes_argmax(pipeline.sampler) and not pipeline.needed:
        warnings.warn(
            f"num_samples={num_samples} has no effect beside {pipeline.sampler!r}, which takes the largest "
            "logit: the samples of a prompt are alike. Sample with Sample()",
            NoEffectWarning,
            stacklevel=_CALLER_OF_A_CALL,
        )


_CALLER_OF_A_CALL = 4
"""Frames up to the line that calls a generator or its ``stream``: this one, ``_rows``, and that method."""

_CALLER = 6
"""
Frames up to the line that builds a ``Generator``: this one, two ``__attrs_post_init__`` and two ``__init__``.
"""


def _is_neutral(stage: Processor) -> bool:
    """Whether *stage* returns logits as they are, as processors do at their neutral value."""
    # A function of a user's is not called before a generation.
    if not attrs.has(type(stage)):
        return False
    one = torch.ones(1, dtype=torch.int64)
    logits = torch.linspace(-8.0, 8.0, 64)[None, None]
    try:
        return stage(logits, History(one[None, None], one[None], one, one)) is logits
    except Exception:  # parameters of one number a row, or what else a custom processor requires
        return False
