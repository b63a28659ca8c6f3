"""The calls of ``torch.cuda`` and their order, with ``torch.cuda`` replaced by a list of calls."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decodekit.neuron_backend.targets.cuda.cuda_runtime import CudaRecorder, CudaRuntime, Gpu

DEVICE = torch.device("cuda:1")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The recorded calls."""
    asked: list[Any] = []

    def stream(name: str) -> Any:
        return SimpleNamespace(
            name=name,
            device=DEVICE,
            wait_stream=lambda other: asked.append((name, "waits for", other.name)),
            synchronize=lambda: asked.append((name, "synchronize")),
        )

    @contextlib.contextmanager
    def within(*what: Any) -> Iterator[None]:
        asked.append(("enter", *what))
        yield
        asked.append(("leave", *what))

    class Graph:
        def replay(self) -> None:
            asked.append("replay")

    def recording(graph: Graph, **options: Any) -> Any:
        options["stream"] = options["stream"].name
        return within("graph", options)

    current = stream("current")
    monkeypatch.setattr(torch.cuda, "device", lambda device: within("device", device))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda one: within("stream", one.name))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    return asked


def test_a_recording_is_made_as_pytorch_says(calls: list[Any]) -> None:
    """Warm-up on a synchronised side stream; the recording there, into the decoder's pool."""
    replay = CudaRecorder(DEVICE).record(lambda: calls.append("run"))
    options = {"pool": "pool", "stream": "side", "capture_error_mode": "thread_local"}

    assert calls == [
        ("enter", "device", DEVICE),
        ("leave", "device", DEVICE),
        ("side", "waits for", "current"),
        ("enter", "stream", "side"),
        "run",
        "run",
        ("leave", "stream", "side"),
        ("current", "waits for", "side"),
        ("enter", "graph", options),
        "run",
        ("leave", "graph", options),
    ]
    calls.clear()
    replay()
    assert ["replay"] == calls


def test_the_host_waits_for_the_current_stream(calls: list[Any]) -> None:
    """And for no other stream."""
    CudaRuntime().wait(DEVICE)

    assert [("current", "synchronize")] == calls


class TestDevice:
    """With its index, since the current one may change."""

    @pytest.fixture(autouse=True)
    def four_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)

    @pytest.mark.parametrize(
        ("name", "rank", "current", "expected"),
        [
            pytest.param("cuda", "0", 0, "cuda:0", id="the-first-processes"),
            pytest.param("cuda", "2", 0, "cuda:2", id="one-for-each-process"),
            pytest.param("cuda", "2", 3, "cuda:3", id="one-that-the-program-chose"),
            pytest.param("cuda", "4", 0, "cuda:0", id="the-current-one-of-too-few"),
            pytest.param("cuda:0", "2", 0, "cuda:0", id="the-one-that-is-named"),
        ],
    )
    def test_is_found(
        self, name: str, rank: str, current: int, expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``"cuda"`` depends on the process, whether its model is divided or whole."""
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        monkeypatch.setenv("LOCAL_RANK", rank)

        assert torch.device(expected) == CudaRuntime().device(name)

    def test_without_torchrun_is_the_current_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program may create its process group and select a GPU itself."""
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
        monkeypatch.delenv("LOCAL_RANK", raising=False)

        assert torch.device("cuda:3") == CudaRuntime().device("cuda")


class TestLack:
    """The reason why there is no GPU."""

    def test_may_be_the_build(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "cuda", None)

        assert f"torch {torch.__version__}, which is built without CUDA" == CudaRuntime().lack()

    def test_may_be_the_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        found = CudaRuntime().lack()

        assert f"torch {torch.__version__}, built for CUDA 12.8, which finds no GPU" == found

    def test_is_none_where_there_is_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "L4")

        assert CudaRuntime().lack() is None
        assert Gpu("L4", (8, 9), "12.8") == CudaRuntime().gpu(DEVICE)


@pytest.mark.cuda
def test_staging_is_pinned() -> None:
    """So that copies are asynchronous."""
    assert CudaRuntime().staging(8).is_pinned()
