"""Traced decoders that score trees, with NxD."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget
from decodekit.processors import Temperature
from decodekit.speculation import DraftTree, SpeculativeGenerator, Tree

from .conftest import SHAPE, Built, build

pytestmark = pytest.mark.stand_in

PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 5, 9, 2], [60, 1, 30]]
STOP = MaxNewTokens(45)
TREES: dict[str, Any] = {"widths": (1, 16), "scored_width": 1, "tree_widths": (7,)}


@pytest.fixture(scope="module")
def built(tiny_model: Callable[..., PreTrainedModel]) -> Built:
    """A decoder that scores chains and trees."""
    return build(tiny_model("llama"), TracedTarget(way="nxd"), **TREES)


@pytest.fixture
def eager(tiny_model: Callable[..., PreTrainedModel]) -> CompiledDecoder:
    """The same decoder, eager."""
    return compile_decoder(tiny_model("llama"), target="eager", **{**SHAPE, **TREES})


def test_are_scored_as_by_the_eager_decoder(built, eager):
    """Side branches, padding and both spans, over the cache of the chains."""
    parents = torch.tensor([[-1, 0, 0, 1, 2, -1, 5], [-1, 0, 1, 0, -1, -1, -1]])
    ids = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, -1, -1, -1]])
    text = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(0))
    for start in (0, 16):
        for decoder in (built.decoder, eager):
            decoder.forward(text, torch.tensor([start, start]))
    for start in ([2, 4], [30, 32]):
        found, expected = (
            decoder.forward_tree(ids, torch.tensor(start), parents) for decoder in (built.decoder, eager)
        )

        torch.testing.assert_close(found[ids >= 0], expected[ids >= 0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sampling_parts", [{}, {"processors": Temperature(0.8), "sampler": Sample(seed=7)}])
def test_write_the_text_of_plain_decoding(sampling_parts, built, eager):
    """With draft tokens of the first layer, some of which are accepted."""
    draft = eager.early_exit(1, widths=(1, 2, 16))
    expected = Generator(eager, stop=STOP, **sampling_parts)(PROMPTS).ids

    fast = SpeculativeGenerator(built.decoder, DraftTree(draft, Tree.comb(2, 2)), stop=STOP, **sampling_parts)
    found = fast(PROMPTS)

    assert expected == found.ids
    assert 0 < sum(found.statistics.accepted) < sum(found.statistics.drafted)


def test_have_a_program_for_each_span(built):
    """One width of chains and one of trees by two spans, and the widest: all write the cache in place."""
    assert (5, 5 * 5) == (built.executables, built.aliased)


def test_leave_the_cache_where_it_is(built):
    """The same memory for chains and trees."""
    before = built.addresses()

    built.decoder.forward_tree(
        torch.full((2, 7), 5), torch.tensor([3, 7]), torch.tensor([[-1, 0, 0, 1, 1, 2, 2]] * 2)
    )

    assert before == built.addresses()


def test_can_be_saved(built, tmp_path, monkeypatch):
    """Loading traces nothing, and the logits are the same."""
    import neuronx_distributed

    built.decoder.save(tmp_path / "decoder")
    monkeypatch.setattr(neuronx_distributed.ModelBuilder, "trace", None)
    inputs = (
        torch.tensor([[3, 4, 5, 6, 7, 8, 9]] * 2),
        torch.tensor([0, 0]),
        torch.tensor([[-1, 0, 0, 1, 1, 2, 2]] * 2),
    )

    loaded = load_decoder(tmp_path / "decoder")

    assert torch.equal(built.decoder.forward_tree(*inputs), loaded.forward_tree(*inputs))
