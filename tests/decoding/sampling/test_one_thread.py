"""Arithmetic on few logits, on one of torch's threads."""

import re
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from decodekit.decoding import Greedy, History, Sample
from decodekit.decoding.protocols import Processor
from decodekit.decoding.sampling import one_thread as module
from decodekit.decoding.sampling.one_thread import WORTH_THREADS, one_thread
from decodekit.decoding.sampling.pipeline import SamplingPipeline
from decodekit.processors import PrefixFunction, Temperature, from_transformers

from ...histories import history_of_rows

HISTORY = history_of_rows([[1, 2]])

pytestmark = pytest.mark.skipif(module._set_openmp_threads is None, reason="needs a torch with OpenMP")


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """Of torch's."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("elements", "threads"), [(0, 1), (49_152, 1), (WORTH_THREADS - 1, 1), (WORTH_THREADS, 3)]
)
def test_many_elements_are_worth_threads(elements: int, threads: int) -> None:
    """All of them or one, and those of before afterwards."""
    with one_thread(elements):
        assert threads == torch.get_num_threads()
    assert 3 == torch.get_num_threads()


def mkl_threads() -> int:
    """Those of MKL in this thread."""
    return int(re.findall(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())[0])


@pytest.mark.skipif(module._set_mkl_threads is None, reason="needs a torch with MKL")
def test_mkl_uses_as_many() -> None:
    """Its threads are others than OpenMP's setting says."""
    assert 3 == mkl_threads()
    with one_thread(1):
        assert 1 == mkl_threads()
    assert 3 == mkl_threads()


def test_ends_with_an_exception() -> None:
    """Of the body."""
    with pytest.raises(KeyError), one_thread(1):
        raise KeyError
    assert 3 == torch.get_num_threads()


def test_threads_that_begin_meanwhile_are_not_affected() -> None:
    """A forward in them takes as many as ever."""
    seen: list[int] = []
    with one_thread(1):
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
    assert [3] == seen


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
