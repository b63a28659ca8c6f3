"""Traced decoders that are divided among cores, sample in their programs, and score trees."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.history import History
from decodekit.neuron_backend import compile_decoder, load_decoder
from decodekit.neuron_backend.targets.neuron.functional_step import state_names
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget
from decodekit.neuron_backend.targets.target import NOT_SAVED
from decodekit.processors import RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import DraftTree, PromptLookup, SpeculativeGenerator, Tree

pytestmark = pytest.mark.stand_in

SHAPE: dict[str, Any] = {
    "batch_size": 2,
    "max_length": 64,
    "widths": (1, 5),
    "scored_width": 5,
    "tree_widths": (7,),
    "spans": (64,),
}
CHOSEN: dict[str, Any] = {
    "processors": RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.95),
    "sampler": Sample(seed=7),
}
PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 5, 9, 2], [60, 1, 30]]
STOP = MaxNewTokens(30)


@pytest.fixture(scope="module")
def sampling(tiny_model, trace_decoder):
    """A decoder on two cores with the chain: two widths with and without sampling, and one of trees."""
    return trace_decoder(tiny_model("llama"), TracedTarget(way="nxd"), tp_degree=2, **SHAPE, **CHOSEN)


@pytest.fixture(scope="module")
def eager(tiny_model):
    """The whole model, eager; the host samples."""
    return compile_decoder(tiny_model("llama"), target="eager", **SHAPE)


@pytest.fixture(autouse=True)
def nothing_fed(sampling, eager) -> None:
    """Forget fed tokens: some tests call forward directly, without the record."""
    for decoder in (sampling.decoder, eager):
        Slots.of(decoder).forget()


class TestChoices:
    """Token for token what the host samples from an eager decoder's logits."""

    def test_plain(self, sampling, eager, sampled_widths):
        """The device samples all but each row's first token."""
        generator = Generator(sampling.decoder, stop=STOP, **CHOSEN)

        assert Generator(eager, stop=STOP, **CHOSEN)(PROMPTS).ids == generator(PROMPTS).ids
        assert len(sampled_widths) >= 29
        assert generator.explain().on_device

    def test_with_prompt_lookup(self, sampling, eager, sampled_widths):
        """Verifications of several columns, sampled by the device."""
        fast = SpeculativeGenerator(sampling.decoder, PromptLookup(), num_draft_tokens=4, stop=STOP, **CHOSEN)

        assert Generator(eager, stop=STOP, **CHOSEN)(PROMPTS).ids == fast(PROMPTS).ids
        assert 5 in sampled_widths

    def test_greedy_on_the_host(self, sampling, eager, sampled_widths):
        """Plain programs share the caches with those that sample."""
        assert Generator(eager, stop=STOP)(PROMPTS).ids == Generator(sampling.decoder, stop=STOP)(PROMPTS).ids
        assert [] == sampled_widths


class TestTrees:
    """Trees scored by all cores."""

    def test_as_by_the_eager_decoder(self, sampling, eager):
        """Side branches and padding, after chains in the same caches."""
        parents = torch.tensor([[-1, 0, 0, 1, 2, -1, 5], [-1, 0, 1, 0, -1, -1, -1]])
        ids = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, -1, -1, -1]])
        text = torch.randint(61, (2, 5), generator=torch.Generator().manual_seed(0))
        for decoder in (sampling.decoder, eager):
            decoder.forward(text, torch.tensor([0, 0]))

        found, expected = (
            decoder.forward_tree(ids, torch.tensor([5, 4]), parents) for decoder in (sampling.decoder, eager)
        )

        torch.testing.assert_close(found[ids >= 0], expected[ids >= 0], atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("sampling_parts", [{}, CHOSEN], ids=["greedy", "sampled"])
    def test_write_the_text_of_plain_decoding(self, sampling, eager, sampling_parts):
        """With draft tokens of the first layer, some of which are accepted."""
        draft = eager.early_exit(1, widths=(1, 2, 5))
        expected = Generator(eager, stop=STOP, **sampling_parts)(PROMPTS).ids

        fast = SpeculativeGenerator(
            sampling.decoder,
            DraftTree(draft, Tree.comb(2, 2)),
            num_draft_tokens=4,
            stop=STOP,
            **sampling_parts,
        )
        found = fast(PROMPTS)

        assert expected == found.ids
        assert 0 < sum(found.statistics.accepted) < sum(found.statistics.drafted)


class TestDevice:
    """State and programs on the cores."""

    def test_programs_are_compiled_once_for_all_cores(self, sampling):
        """Plain, sampling and tree programs; each writes the cache of two layers in place."""
        assert (5, 5 * 5) == (sampling.executables, sampling.aliased)

    def test_every_program_writes_every_cores_heads(self, sampling, eager):
        """After sampling and a tree, the cache equals the eager decoder's, and has not moved."""
        history = (torch.ones(shape).long() for shape in ((2, 1, 65), (2, 1), (2,), (2,)))
        ids, start = torch.tensor([[3], [4]]), torch.tensor([0, 0])
        # One branch, which is kept entirely.
        tree = torch.tensor([[5, 6, 7, 8, 9, 10, 11]] * 2), start + 1, torch.arange(-1, 6).repeat(2, 1)
        before = [[state.address for state in states.values()] for states in sampling.cores]

        sampling.decoder.forward_and_sample(ids, start, History(*history))
        eager.forward(ids, start)
        for decoder in (sampling.decoder, eager):
            decoder.forward_tree(*tree)

        for name, expected in zip(state_names(eager.cache)[:-1], eager.cache.states, strict=True):
            whole = torch.cat([states[name].value.cpu() for states in sampling.cores], dim=1)
            # After the slots with undefined content, of padding and side branches.
            kept = slice(eager.cache.reserved, eager.cache.reserved + 8)
            torch.testing.assert_close(whole[:, :, kept], expected[:, :, kept])
        assert before == [[state.address for state in states.values()] for states in sampling.cores]


class TestSaving:
    """Loading traces nothing."""

    @pytest.fixture
    def saved(self, sampling, tmp_path, monkeypatch):
        """The folder of the saved decoder."""
        import neuronx_distributed

        sampling.decoder.save(tmp_path / "decoder")
        monkeypatch.setattr(neuronx_distributed.ModelBuilder, "trace", None)
        return tmp_path / "decoder"

    def test_with_the_chain_the_device_samples(self, saved, eager):
        """Every core gets the samplers' constants again."""
        loaded = load_decoder(saved, **CHOSEN)

        assert (2, (1, 5), False) == (loaded.tp_degree, loaded.sampling_widths, loaded.compiled)
        assert (
            Generator(eager, stop=STOP, **CHOSEN)(PROMPTS).ids
            == Generator(loaded, stop=STOP, **CHOSEN)(PROMPTS).ids
        )

    def test_with_another_chain_the_host_samples(self, saved, eager):
        """From the plain programs."""
        other: dict[str, Any] = {"processors": Temperature(0.5), "sampler": Sample(seed=3)}
        loaded = load_decoder(saved, **other)

        assert NOT_SAVED in str(loaded.explain())
        assert (
            Generator(eager, stop=STOP, **other)(PROMPTS).ids
            == Generator(loaded, stop=STOP, **other)(PROMPTS).ids
        )


class Sums(nn.Module):
    """A sum among cores, each core's summand, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.weight = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        from neuronx_distributed.parallel_layers.mappings import reduce_from_tensor_model_parallel_region

        own = self.weight * x
        self.total = self.total + reduce_from_tensor_model_parallel_region(own + 0.0)
        return self.total * 1.0, own


def test_the_stand_in_gives_each_rank_its_own():
    """With inputs by rank, outputs are by output and rank, on the device."""
    from neuronx_distributed import ModelBuilder, NxDParallelState

    x = torch.tensor([1.0, 2.0, 3.0])
    with NxDParallelState(world_size=2, tensor_model_parallel_size=2):
        model = ModelBuilder(Sums()).trace(kwargs={"x": x}, tag="one").compile()
    model.set_weights([{"weight": torch.full((3,), value)} for value in (2.0, 5.0)])
    model.to_neuron()

    total, own = model(x=[x, 10 * x], forward_mode="ranked")

    assert 2 == model.local_ranks_size
    assert {"xla"} == {tensor.device.type for tensor in (*total, *own)}
    assert [[52.0, 104.0, 156.0]] * 2 == [tensor.cpu().tolist() for tensor in total]
    assert [[2.0, 4.0, 6.0], [50.0, 100.0, 150.0]] == [tensor.cpu().tolist() for tensor in own]
    with pytest.raises(ValueError, match="each rank"):
        model(x=[x], forward_mode="ranked")
