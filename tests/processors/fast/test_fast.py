"""What the short cuts of processors offer, and to which classes."""

import inspect
import subprocess
import sys

import pytest
from torch import Tensor

from decodekit.decoding import History, Processor
from decodekit.decoding.sampling import short_cuts
from decodekit.decoding.sampling.short_cuts import short_cuts_of
from decodekit.processors import MinP, NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.processors.parameter import options_of

STAGES = (TopK(5), TopP(0.9), MinP(0.1), Temperature(0.5), RepetitionPenalty(1.1), NoRepeatNgram(2))

NAMES = {
    name
    for kind in vars(short_cuts).values()
    if inspect.isclass(kind) and getattr(kind, "_is_protocol", False)
    for name in {*vars(kind), *kind.__annotations__}
    if not name.startswith("_")
}


@pytest.mark.parametrize(
    ("stage", "offered"),
    [
        (TopK(5), "narrow among takes_few of_few to_few"),
        (TopP(0.9), "narrow among takes_few of_few"),
        (MinP(0.1), "narrow"),
        (Temperature(0.5), "into takes_few of_few at_most"),
        (RepetitionPenalty(1.1), "into takes_few of_few at_most"),
        (NoRepeatNgram(2), "into"),
    ],
)
def test_what_they_offer(stage: Processor, offered: str) -> None:
    """All of it and nothing else; the processor itself has none of it."""
    assert set(offered.split()) == {name for name in NAMES if hasattr(short_cuts_of(stage), name)}
    assert not any(hasattr(stage, name) for name in NAMES)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: type(stage).__name__)
def test_a_subclass_has_none(stage: Processor) -> None:
    """It may change the call."""

    class Changed(type(stage)):  # type: ignore[misc]
        def __call__(self, logits: Tensor, history: History) -> Tensor:
            return logits

    assert short_cuts_of(stage) is not None
    assert short_cuts_of(Changed(**options_of(stage))) is None


def test_they_are_imported_when_they_are_needed() -> None:
    """Not with the processors, but with the first pipeline."""
    code = (
        "import sys; from decodekit.processors import TopK; from decodekit.decoding import *;"
        "there = lambda: any('processors.fast' in name for name in sys.modules);"
        "print(there()); SamplingPipeline(TopK(3), Sample(seed=0)); print(there())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "False\nTrue\n" == done.stdout
