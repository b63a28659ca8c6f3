"""One compilation per program, and the span that serves a forward."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.neuron_backend.targets.neuron import native_program as native_program_module
from decodekit.neuron_backend.targets.neuron.native_program import NativeProgram, OnceBackend, SpanProgram


def serves(size: int) -> SpanProgram:
    """A program that returns its number of slots and its inputs."""

    def run(*inputs: Tensor) -> Tensor:
        return torch.tensor([size, len(inputs[1]), *inputs[0].flatten().tolist()])

    return SpanProgram(run, torch.arange(size), OnceBackend(lambda *given: lambda: None, str(size)))


class TestOnceBackend:
    def test_compiles_once(self) -> None:
        """A second compilation raises an error that names the program."""
        once = OnceBackend(lambda graph, inputs: lambda: inputs, "width_1_span_128")
        graph: Any = None

        assert [7] == once(graph, [7])()
        with pytest.raises(RuntimeError, match="must not compile: got a second graph of width_1_span_128"):
            once(graph, [8])

    def test_an_attempt_that_fails_does_not_count(self) -> None:
        """torch.compile may start again."""
        attempts = iter([True, False])

        def backend(graph: Any, inputs: Any) -> Any:
            if next(attempts):
                raise KeyError
            return lambda: inputs

        once = OnceBackend(backend, "width_1_span_128")
        graph: Any = None
        with pytest.raises(KeyError):
            once(graph, [])

        assert [7] == once(graph, [7])()
        assert 1 == once.compilations


class TestNativeProgram:
    @pytest.mark.parametrize(("asked", "served"), [(33, 65), (65, 65), (66, 129)])
    def test_the_shortest_sufficient_span_serves(self, asked: int, served: int) -> None:
        """A width has no program for shorter spans."""
        program = NativeProgram({65: serves(65), 129: serves(129)}, (), torch.device("cpu"))

        assert [served, served, 5] == program(torch.tensor([[5]]), torch.arange(asked)).tolist()

    def test_meaningless_numbers_fit_into_32_bits(self) -> None:
        """Large positions occur beside padding only."""
        program = NativeProgram({65: serves(65)}, (), torch.device("cpu"))
        given = torch.tensor([[2**62, -(2**62), 7, -1]])

        assert [2**30, -(2**30), 7, -1] == program(given, torch.arange(65)).tolist()[2:]

    def test_its_device_is_the_current_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only while it runs."""
        current = []

        @contextlib.contextmanager
        def on(device: torch.device) -> Iterator[None]:
            current.append(device)
            yield
            current.pop()

        def run(*inputs: Tensor) -> Tensor:
            return torch.tensor(len(current))

        monkeypatch.setattr(native_program_module, "on_device", on)
        once = OnceBackend(lambda *given: lambda: None, "")
        program = NativeProgram({65: SpanProgram(run, torch.arange(65), once)}, (), torch.device("cpu"))

        assert 1 == program(torch.tensor([[5]]), torch.arange(65))
        assert [] == current
