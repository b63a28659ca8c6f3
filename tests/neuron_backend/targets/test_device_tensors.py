"""Tensors of a decoder on another device: here the meta device, which has shapes only."""

import gc
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.neuron_backend import StaticDecoder, lower
from decodekit.neuron_backend.lowering.step_graphs import lower_step
from decodekit.neuron_backend.targets import device_tensors as placement_module
from decodekit.neuron_backend.targets.device_tensors import copy_to, on_device, place_cache, place_graph

META = torch.device("meta")


class TestCopyTo:
    def test_a_tensor_has_one_copy(self) -> None:
        """Shared by several programs and decoders."""
        tensor = torch.nn.Parameter(torch.ones(2))
        copy = copy_to(META, tensor)

        assert copy is copy_to(META, tensor)
        assert ("meta", False) == (copy.device.type, copy.requires_grad)

    def test_it_is_copied_again_after_a_write(self) -> None:
        """Or it would be stale."""
        tensor = torch.ones(2)
        before = copy_to(META, tensor)
        tensor.add_(1)

        assert before is not copy_to(META, tensor)

    def test_it_is_freed_with_the_tensor(self) -> None:
        """It cannot be looked up any more."""
        tensor = torch.ones(2)
        copy_to(META, tensor)
        # Tensors of other tests, in cycles, must not be freed with this one.
        gc.collect()
        kept = len(placement_module._COPIES[META])
        del tensor
        gc.collect()

        assert kept - 1 == len(placement_module._COPIES[META])

    def test_a_tensor_on_the_device_is_not_copied(self) -> None:
        """It keeps its memory."""
        tensor = torch.ones(2)

        assert tensor.data_ptr() == copy_to(torch.device("cpu"), tensor).data_ptr()


class TestOnDevice:
    def test_a_device_with_a_number_becomes_the_current_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By PyTorch's module for devices of its kind."""
        monkeypatch.setattr(torch.cuda, "device", lambda device: ("current", device))

        assert ("current", torch.device("cuda:1")) == on_device(torch.device("cuda:1"))

    @pytest.mark.parametrize("device", ["cpu", "cuda", "meta:0"])
    def test_without_a_numbered_device_nothing_happens(self, device: str) -> None:
        """A single device, no number, or a kind without a module."""
        with on_device(torch.device(device)) as entered:
            assert entered is None


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("name", ["llama", "gemma2", "opt"])
def test_a_placed_graph_runs_there(name: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
    """It holds no host tensor, or it would raise; the model stays on the host."""
    decoder = StaticDecoder(tiny_model(name), batch_size=2, max_length=32, widths=(3,))
    graph = lower_step(decoder.step, 3, decoder.cache, 32)
    place_graph(META, graph)
    cache = place_cache(META, decoder.cache)
    inputs = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        logits = graph(*(t.to(META) for t in (*inputs, decoder.cache.addresses(32))), *cache.tensors)

    assert ((2, 3, 61), "meta") == (tuple(logits.shape), logits.device.type)
    assert {"cpu"} == {tensor.device.type for tensor in decoder.step.state_dict().values()}
    assert {"cpu"} == {buffer.device.type for buffer in decoder.cache.tensors}


def test_a_device_may_be_a_positional_argument() -> None:
    """As in conversions."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    there = graph.call_function(torch.ops.aten.to.device, (x, torch.device("cpu"), torch.float32))
    graph.output(there)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    place_graph(META, module)

    assert "meta" == module(torch.ones(2)).device.type


def test_a_placed_graph_makes_its_tensors_there() -> None:
    """Such as random numbers."""

    class Noisy(torch.nn.Module):
        """Adds noise."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(2, device="cpu")

    graph = lower(Noisy(), (torch.ones(2),))
    place_graph(META, graph)

    assert "meta" == graph(torch.ones(2, device=META)).device.type
