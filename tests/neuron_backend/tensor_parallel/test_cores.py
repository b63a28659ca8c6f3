"""Tensor parallelism over cores that one process drives."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decodekit.decoding import Greedy
from decodekit.decoding.history import History
from decodekit.neuron_backend import StaticDecoder, compile_decoder
from decodekit.neuron_backend.targets.eager_target import EagerTarget
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget
from decodekit.neuron_backend.tensor_parallel.cores import CORES, Cores, ranks_or_cores
from decodekit.neuron_backend.tensor_parallel.parallel_layers import all_reduce, override_all_reduce


@pytest.fixture
def decoder(tiny_model) -> StaticDecoder:
    """A decoder of a model with four heads and two key/value heads, for two cores."""
    decoder = StaticDecoder(tiny_model("llama"), batch_size=2, max_length=16, widths=(1, 4))
    decoder.cores = 2
    return decoder


class TestHolders:
    """Ranks or cores that share a model."""

    def test_are_cores_where_the_target_drives_them(self):
        """In one process, without torchrun."""
        assert (None, 4) == ranks_or_cores(TracedTarget(), 4)

    def test_are_processes_elsewhere(self):
        """Here, there is one process."""
        assert (None, 1) == ranks_or_cores(EagerTarget(), 1)
        with pytest.raises(ValueError, match="'tp_degree' must be the number of processes, 1: got 4"):
            ranks_or_cores(EagerTarget(), 4)

    @pytest.mark.parametrize("degree", [0, -1, True, 2.0, "2"])
    def test_are_counted_in_whole_numbers(self, degree):
        """From 1 on."""
        with pytest.raises(ValueError, match="'tp_degree' must be a whole number >= 1: got"):
            ranks_or_cores(TracedTarget(), degree)

    def test_of_a_target_that_drives_them_are_not_started(self, monkeypatch):
        """Each of several processes would use all cores."""
        monkeypatch.setenv("WORLD_SIZE", "2")

        with pytest.raises(ValueError, match=r"drives all 2 cores: got one of 2; .* without torchrun"):
            ranks_or_cores(TracedTarget(), 2)
        assert (None, 1) == ranks_or_cores(TracedTarget(), 1)

    def test_have_floating_weights(self, tiny_model, monkeypatch):
        """Quantised weights are not sharded, whatever is installed."""
        monkeypatch.setattr(TracedTarget, "require", lambda self: None)
        with pytest.raises(ValueError, match="'weights' must be None with tp_degree > 1: got 'int8'"):
            compile_decoder(tiny_model("llama"), target=TracedTarget(), tp_degree=2, weights="int8")


class TestCores:
    """Shards of the cores."""

    def test_one_core_has_all(self, decoder):
        """Nothing is sharded or copied."""
        decoder.cores = 1

        cores = Cores.of(decoder)

        assert cores.part is decoder
        assert [{"a": decoder.cache.keys[0]}] == cores.weights({"a": decoder.cache.keys[0]}, "step.")

    def test_have_a_part_of_the_cache(self, decoder):
        """The key/value heads are sharded; shape and widths are the decoder's."""
        part = Cores.of(decoder).part

        assert decoder.shape == part.shape
        assert decoder.spans == part.spans
        for whole, own in zip(decoder.cache.states, part.cache.states, strict=True):
            assert (2, 2, 1) == (whole.shape[0], whole.shape[1], own.shape[1])
            assert whole.shape[2:] == own.shape[2:]

    def test_sample_as_the_decoder_does(self, decoder):
        """Each core has the complete logits."""
        decoder.fuse(None, Greedy())

        fusion = Cores.of(decoder).part.fusion

        assert fusion is not None
        assert decoder.fusion.widths == fusion.widths
        assert decoder.fusion.sampler is fusion.sampler
        assert decoder.fusion.step is not fusion.step

    def test_keep_the_name_of_the_fusion(self, decoder):
        """Also with a user-defined processor, which has no digest."""

        def halved(logits: torch.Tensor, history: History) -> torch.Tensor:
            return logits * 0.5

        halved.device_safe = True  # type: ignore[attr-defined]
        decoder.fuse(halved, Greedy())

        part = Cores.of(decoder).part

        assert decoder.fusion.step.kind == part.fusion.step.kind
        assert part.step is part.fusion.step.step

    def test_have_weights_under_the_same_names(self, decoder):
        """Of the same shapes; together they are the model's, and replicated weights are one tensor."""
        cores = Cores.of(decoder)
        first = {f"at.{name}": tensor for name, tensor in cores.part.step.model.state_dict().items()}

        each = cores.weights({**first, "at.rotary": torch.ones(1)}, "at.")

        assert 2 == len(each)
        table = [{name: (tensor.shape, tensor.dtype) for name, tensor in own.items()} for own in each]
        assert table[0] == table[1]
        whole = decoder.step.model.state_dict()
        name = "model.layers.0.self_attn.q_proj.weight"
        torch.testing.assert_close(torch.cat([own[f"at.{name}"] for own in each]), whole[name])
        norm = "at.model.norm.weight"
        assert each[0][norm].data_ptr() == each[1][norm].data_ptr()
        # Non-persistent buffers are the same on all cores.
        assert each[0]["at.rotary"] is each[1]["at.rotary"]

    def test_together_are_the_model(self, decoder, tiny_model):
        """The sum of all partial results is the whole model's."""
        ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
        model = tiny_model("llama")

        found = in_turns(decoder, ids)

        with torch.no_grad():
            torch.testing.assert_close(found, model(input_ids=ids).logits, atol=1e-4, rtol=1e-4)

    def test_need_heads_that_come_out_even(self, decoder):
        """The error names them."""
        decoder.cores = 3

        with pytest.raises(
            ValueError, match=r"'tp_degree' must divide .* of LlamaForCausalLM: got 3; 1 or 2"
        ):
            Cores.of(decoder)

    def test_need_a_whole_model(self, decoder):
        """The shard of one of several processes is refused."""
        decoder.ranks = SimpleNamespace(degree=2)  # type: ignore[assignment]

        with pytest.raises(ValueError, match="must divide a whole model: got the part of one of 2"):
            Cores.of(decoder)


def in_turns(decoder: StaticDecoder, ids: torch.Tensor) -> Any:
    """
    Logits of a sharded model, without any cores.

    The *n*-th all-reduce is computed by running all shards with the results of those before it.
    """
    from decodekit.neuron_backend.tensor_parallel.ranks import Ranks
    from decodekit.neuron_backend.tensor_parallel.sharded_model import shard_model

    parts = [shard_model(decoder.step.model, Ranks(2, core, CORES)) for core in range(2)]
    known: list[torch.Tensor] = []
    while True:
        seen: list[list[torch.Tensor]] = [[], []]
        for part, partials in zip(parts, seen, strict=True):

            def total(partial: torch.Tensor, partials: list[torch.Tensor] = partials) -> torch.Tensor:
                partials.append(partial)
                return known[len(partials) - 1] if len(partials) <= len(known) else partial

            with torch.no_grad(), override_all_reduce(CORES, total):
                logits = part(input_ids=ids).logits
        if len(known) == len(seen[0]):
            return logits
        known.append(seen[0][len(known)] + seen[1][len(known)])


class TestSumming:
    """Override of the all-reduce."""

    def test_ends(self):
        """It is in effect only while programs are traced."""
        with override_all_reduce(CORES, lambda partial: partial * 2):
            assert 4.0 == all_reduce(torch.tensor(2.0), CORES).item()

        with pytest.raises(RuntimeError):
            all_reduce(torch.tensor(2.0), CORES)
