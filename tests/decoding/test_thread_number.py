"""Torch's number of threads, of the calling thread alone."""

import re
import threading

import pytest
import torch

from decodekit.decoding import thread_number as module
from decodekit.decoding.thread_number import SETS_CALLING_THREAD, on_number_of_threads

pytestmark = pytest.mark.usefixtures("three_threads")


def mkl_threads() -> int:
    """Those of MKL in this thread."""
    return int(re.findall(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())[0])


@pytest.mark.skipif(module._set_mkl_threads is None, reason="needs a torch with MKL")
@pytest.mark.parametrize("number", [1, 2])
def test_mkl_uses_as_many(number: int) -> None:
    """Its threads are others than OpenMP's setting says."""
    assert 3 == mkl_threads()
    with on_number_of_threads(number):
        assert number == mkl_threads()
    assert 3 == mkl_threads()


def seen_by_another_thread() -> list[int]:
    """Torch's number in a thread that begins now."""
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    return seen


@pytest.mark.skipif(not SETS_CALLING_THREAD, reason="needs a torch with OpenMP")
def test_threads_that_begin_meanwhile_are_not_affected() -> None:
    """They would keep the number for their life."""
    with on_number_of_threads(1):
        assert 1 == torch.get_num_threads()
        assert [3] == seen_by_another_thread()
    assert 3 == torch.get_num_threads()


def test_without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own setting is used, and put back after an error."""
    monkeypatch.setattr(module, "_set_openmp_threads", None)
    seen: list[int] = []

    def fail() -> None:
        seen.append(torch.get_num_threads())
        raise KeyError

    with pytest.raises(KeyError), on_number_of_threads(2):
        fail()
    assert [2] == seen
    assert 3 == torch.get_num_threads()
    assert [3] == seen_by_another_thread()
