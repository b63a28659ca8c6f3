"""The target for the CPU."""

import threading
import time

import pytest

from decodekit.neuron_backend.targets.cpu import toolchain
from decodekit.neuron_backend.targets.cpu.cpu_target import CpuTarget


def test_two_threads_compile_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler reads, and what is replaced in it, is the process's."""
    running = threading.Lock()
    alone: list[bool] = []

    def compile_slowly(target: CpuTarget, decoder: object) -> None:
        alone.append(running.acquire(blocking=False))
        time.sleep(0.05)
        running.release()

    monkeypatch.setattr(toolchain, "require", lambda: None)
    monkeypatch.setattr(CpuTarget, "_compile", compile_slowly)
    threads = [threading.Thread(target=CpuTarget().compile, args=(None,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [True] * 3 == alone
