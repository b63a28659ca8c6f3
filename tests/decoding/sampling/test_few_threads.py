"""Tests of the number of torch's threads for the host's arithmetic."""

import threading

import pytest
import torch

from decodekit.decoding import Greedy, Sample
from decodekit.decoding.sampling.few_threads import ELEMENTS_A_THREAD, few_threads
from decodekit.decoding.sampling.pipeline import SamplingPipeline
from decodekit.processors import Temperature
from decodekit.processors.chain import Composable

from ...histories import history_of_rows

HISTORY = history_of_rows([[1, 2]])


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("times", "expected"), [(0, 1), (0.5, 1), (1, 1), (2, 2), (2.9, 2), (3, 3), (50, 3)])
def test_number_by_elements(times, expected):
    with few_threads(int(times * ELEMENTS_A_THREAD)):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 3


def test_restored_after_an_exception():
    with pytest.raises(KeyError), few_threads(1):
        raise KeyError
    assert torch.get_num_threads() == 3


def test_other_threads_are_not_affected():
    seen = []
    with few_threads(1):
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
    assert seen == [3]


class _Recording(Composable):
    """Records torch's threads, as a processor with declarations."""

    keeps_argmax, shift_invariant, local, device_safe = True, True, True, True

    def __init__(self):
        self.seen = []

    def __call__(self, logits, history):
        self.seen.append(torch.get_num_threads())
        return logits


class _Plain:
    """Records torch's threads, as a function of a user."""

    def __init__(self):
        self.seen = []

    def __call__(self, logits, history):
        self.seen.append(torch.get_num_threads())
        return logits


@pytest.mark.parametrize(("part", "expected"), [(_Recording(), 1), (_Plain(), 3)])
def test_pipelines_of_declared_parts(part, expected):
    chain = Temperature(0.5) | part
    SamplingPipeline(chain, Sample(seed=0))(torch.randn(1, 1, 64), HISTORY)
    assert set(part.seen) == {expected}
    assert torch.get_num_threads() == 3


def test_custom_sampler_keeps_its_threads():
    seen = []

    def sampler(logits, history):
        seen.append(torch.get_num_threads())
        return Greedy()(logits, history)

    SamplingPipeline(Temperature(0.5), sampler)(torch.randn(1, 1, 64), HISTORY)
    assert seen == [3]
