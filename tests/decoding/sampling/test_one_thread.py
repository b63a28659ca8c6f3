"""Arithmetic on few logits, on one of torch's threads."""

import pytest
import torch
from torch import Tensor

from decodekit.decoding import Greedy, History, Sample
from decodekit.decoding.protocols import Processor
from decodekit.decoding.sampling.one_thread import WORTH_THREADS, one_thread
from decodekit.decoding.sampling.pipeline import SamplingPipeline
from decodekit.decoding.thread_number import SETS_CALLING_THREAD
from decodekit.processors import PrefixFunction, Temperature, from_transformers

from ...histories import history_of_rows

HISTORY = history_of_rows([[1, 2]])

pytestmark = [
    pytest.mark.skipif(not SETS_CALLING_THREAD, reason="needs a torch with OpenMP"),
    pytest.mark.usefixtures("three_threads"),
]


@pytest.mark.parametrize(
    ("elements", "threads"), [(0, 1), (49_152, 1), (WORTH_THREADS - 1, 1), (WORTH_THREADS, 3)]
)
def test_many_elements_are_worth_threads(elements: int, threads: int) -> None:
    """All of them or one, and those of before afterwards."""
    with one_thread(elements):
        assert threads == torch.get_num_threads()
    assert 3 == torch.get_num_threads()


def test_ends_with_an_exception() -> None:
    """Of the body."""
    with pytest.raises(KeyError), one_thread(1):
        raise KeyError
    assert 3 == torch.get_num_threads()


class Records:
    """Records torch's threads where it is called."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Return the logits as they are."""
        self.seen.append(torch.get_num_threads())
        return logits


class Ours(Records):
    """The same, as one of decodekit's own."""


Ours.__module__ = "decodekit.processors.ours"
Records.__module__ = "mine"


@pytest.mark.parametrize(("part", "threads"), [(Ours(), 1), (Records(), 3)])
def test_a_pipeline_of_our_parts_runs_on_one(part: Records, threads: int) -> None:
    """A part of others keeps torch's setting, since it may run a model."""
    SamplingPipeline(part, Sample(seed=0))(torch.randn(1, 1, 64), HISTORY)

    assert {threads} == set(part.seen)
    assert 3 == torch.get_num_threads()


def test_functions_of_users_keep_their_threads() -> None:
    """Though the processors that call them are ours."""
    seen: list[int] = []

    def allowed(row: int, ids: Tensor) -> list[int]:
        seen.append(torch.get_num_threads())
        return [3]

    def scores(ids: Tensor, logits: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        return logits

    parts: list[Processor] = [PrefixFunction(allowed), from_transformers(scores)]
    for part in parts:
        SamplingPipeline(Temperature(0.5), Greedy())(torch.randn(1, 1, 64), HISTORY)
        SamplingPipeline(part, Greedy())(torch.randn(1, 1, 64), HISTORY)

    assert [3, 3] == seen


def test_a_sampler_of_others_keeps_its_threads() -> None:
    """Likewise."""
    seen: list[int] = []

    class Sampler:
        __module__ = "mine"

        def __call__(self, logits: Tensor, history: History) -> Tensor:
            seen.append(torch.get_num_threads())
            return Greedy()(logits, history)

    SamplingPipeline(Temperature(0.5), Sampler())(torch.randn(1, 1, 64), HISTORY)

    assert [3] == seen
