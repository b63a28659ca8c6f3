"""Steps that own their cache."""

import pytest
import torch
from torch import nn

from decodekit.decoding import Greedy, Sample
from decodekit.decoding.history import History
from decodekit.neuron_backend import StaticDecoder
from decodekit.neuron_backend.kv_cache.tree_layout import lay_out_tree
from decodekit.neuron_backend.lowering.step_graphs import ProgramShape
from decodekit.neuron_backend.targets.neuron.functional_step import (
    SAMPLERS,
    FunctionalStep,
    ReassigningStep,
    lower_sampling,
    named,
    padding,
)
from decodekit.neuron_backend.targets.neuron.traced_program import to_device
from decodekit.processors import LogitBias, Temperature


@pytest.fixture(params=["llama", "gemma2", "opt"])
def decoder(request, tiny_model) -> StaticDecoder:
    """Eager decoders: shared key heads, a sliding window, tied weights."""
    return StaticDecoder(
        tiny_model(request.param), batch_size=2, max_length=48, widths=(1, 4), scored_width=1, spans=(32, 48)
    )


FORWARDS = [
    (torch.tensor([[3, 4, 5, 6], [-1, -1, 7, 8]]), torch.tensor([0, -2]), 32),
    (torch.tensor([[7], [9]]), torch.tensor([4, 2]), 32),
    (torch.tensor([[-1], [10]]), torch.tensor([0, 3]), 48),
    # A rewind.
    (torch.tensor([[1, 2, 3, -1], [4, 5, 6, 7]]), torch.tensor([2, 1]), 48),
]


def run(step, decoder, keep):
    """Logits of the script; *keep* stores a forward's outputs and returns its logits."""
    return [
        keep(step, step(ids.int(), cache_pos.int(), decoder.cache.addresses(span).int()))
        for ids, cache_pos, span in FORWARDS
    ]


def expected(decoder):
    """The same from the step that writes the cache in place."""
    return [decoder.forward(*forward).clone() for forward in FORWARDS]


def put_back(step, result):
    """Assign outputs to states, as a device does."""
    logits, *cache = result
    with torch.no_grad():
        for state, tensor in zip(step.states.values(), cache, strict=True):
            state.copy_(tensor)
    return logits


class TestFunctionalStep:
    def test_gives_the_logits_and_the_cache(self, decoder):
        """Bit-identical, in int32: padding, rewinds and both spans."""
        step = FunctionalStep(decoder.step, decoder.cache)
        # The decoder's cache still holds the comparison made on its construction.
        put_back(step, [None, *decoder.cache.tensors])

        found = run(step, decoder, put_back)

        assert all(map(torch.equal, expected(decoder), found))
        assert all(map(torch.equal, decoder.cache.tensors, step.states.values()))

    def test_writes_nothing(self, decoder):
        """Neither its own cache nor the decoder's."""
        step = FunctionalStep(decoder.step, decoder.cache)
        before = [tensor.clone() for tensor in decoder.cache.tensors]

        run(step, decoder, lambda step, result: result)

        assert not any(state.any() for state in step.states.values())
        assert all(map(torch.equal, before, decoder.cache.tensors))

    def test_has_parameters_for_states(self, decoder):
        """As torch_neuronx.trace takes them; they do not count as weights."""
        step = FunctionalStep(decoder.step, decoder.cache)

        assert all(isinstance(state, nn.Parameter) for state in step.states.values())
        assert not set(step.states) & set(step.weights)

    def test_shares_the_weights(self, decoder):
        """All of them without a copy, including buffers outside the state dict."""
        step = FunctionalStep(decoder.step, decoder.cache)
        model = decoder.step.model
        tensors = [*model.parameters(), *model.buffers()]

        assert {tensor.data_ptr() for tensor in tensors} == {
            tensor.data_ptr() for tensor in step.weights.values()
        }

    def test_is_moved_alone(self, decoder):
        """XLA replaces its parameters; the decoder's model stays on the host."""
        before = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            FunctionalStep(decoder.step, decoder.cache).to("meta")
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(before)

        assert {"cpu"} == {tensor.device.type for tensor in decoder.step.model.state_dict().values()}
        assert "cpu" == decoder.forward(*FORWARDS[0]).device.type


class TestReassigningStep:
    def test_returns_only_the_logits_and_keeps_the_cache(self, decoder):
        """Its buffers are other tensors after every forward."""
        step = ReassigningStep(decoder.step, decoder.cache)
        put_back(step, [None, *decoder.cache.tensors])
        before = list(step.states.values())
        values = [tensor.clone() for tensor in before]

        found = run(step, decoder, lambda step, logits: logits)

        assert all(map(torch.equal, values, before))
        assert all(map(torch.equal, expected(decoder), found))
        assert all(map(torch.equal, decoder.cache.tensors, step.states.values()))

    def test_has_buffers_for_states(self, decoder):
        """As ModelBuilder v2 takes them, and no parameters."""
        step = ReassigningStep(decoder.step, decoder.cache)

        assert set(step.states) <= set(dict(step.named_buffers()))
        assert not set(step.states) & set(dict(step.named_parameters()))


class TestSampling:
    """A step that samples."""

    @pytest.fixture
    def choosing(self, decoder):
        """A step that samples in forwards of one column, over the decoder's cache."""
        decoder.fuse(Temperature(0.8), Sample(seed=3))
        fused = decoder.fusion.step
        samplers = {1: lower_sampling(fused, 1, decoder.shape)}
        step = ReassigningStep(decoder.step, decoder.cache, samplers, fused.num_sampling_inputs)
        put_back(step, [None, *decoder.cache.tensors])
        return step

    def test_samples_as_the_host_does(self, decoder, choosing):
        """From the same logits and with the same noise, in int32."""
        history = History(*(torch.ones(shape).long() for shape in ((2, 1, 49), (2, 1), (2,), (2,))))
        ids, start = torch.tensor([[7], [9]]), torch.tensor([4, 2])
        expected, scores = decoder.forward_and_sample(ids, start, history)
        inputs = ids, start, *decoder.fusion.step.sampling_inputs(history), decoder.cache.addresses(32)

        chosen, logits = choosing(**named("fused", *inputs))

        assert torch.int32 == chosen.dtype
        assert expected.tolist() == chosen.tolist()
        assert torch.equal(scores.logits, logits)

    def test_has_the_constants_of_its_chain_among_its_weights(self, decoder):
        """Which are put on the device; a bias is a tensor of the processor's."""
        decoder.fuse(LogitBias({3: 1.5, 5: -2.0}), Greedy())
        fused = decoder.fusion.step
        sampler = lower_sampling(fused, 1, decoder.shape)
        step = FunctionalStep(decoder.step, decoder.cache, {1: sampler}, fused.num_sampling_inputs)
        read = {f"{SAMPLERS}.1.{node.target}" for node in sampler.graph.find_nodes(op="get_attr")}

        assert read
        assert read <= step.weights.keys()
        history = History(*(torch.ones(shape).long() for shape in ((2, 1, 49), (2, 1), (2,), (2,))))
        logits = torch.zeros(2, 1, decoder.shape.vocab_size)
        logits[..., 5] = 3.0
        given = [to_device(one) for one in fused.sampling_inputs(history)]
        # 3 - 2 against 0 + 1.5.
        assert [[3], [3]] == sampler(logits, *given).tolist()

    def test_only_scores_without_sampling_inputs(self, decoder, choosing):
        """And at widths without a sampler."""
        logits = choosing(**padding(ProgramShape(decoder.step, 1, 48), decoder.cache))
        wide = choosing(**padding(ProgramShape(decoder.step, 4, 48), decoder.cache))

        assert ((2, 1), (2, 1)) == (logits.shape[:2], wide.shape[:2])


def test_a_tree_is_scored_as_by_the_tree_step(tiny_model):
    """Branches in scratch slots: the same logits and the same cache, out of place and in int32."""
    decoder = StaticDecoder(
        tiny_model("llama"), batch_size=2, max_length=32, widths=(1,), tree_widths=(4,), spans=(32,)
    )
    step = ReassigningStep(decoder.step, decoder.cache)
    put_back(step, [None, *decoder.cache.tensors])
    ids, parents = torch.tensor([[3, 4, 5, 6], [7, 8, 9, -1]]), torch.tensor([[-1, 0, 0, 1], [-1, 0, 1, -1]])
    layout = lay_out_tree(ids, torch.tensor([2, 5]), parents)
    slots = decoder.cache.addresses(32)

    found = step(**named("tree", ids, *layout, slots))

    assert torch.equal(decoder.forward_tree(ids, torch.tensor([2, 5]), parents), found)
    assert all(map(torch.equal, decoder.cache.tensors, step.states.values()))


def test_padding_is_int32(decoder):
    """Ids, one position per row, and a span's addresses."""
    found = padding(ProgramShape(decoder.step, 4, 32), decoder.cache)

    assert ["ids", "cache_pos", "slots"] == list(found)
    assert {torch.int32} == {tensor.dtype for tensor in found.values()}
    assert [(2, 4), (2,), (33,)] == [tuple(tensor.shape) for tensor in found.values()]
    assert bool((found["ids"] == -1).all())
