"""A Hugging Face model with a StaticCache: eagerly, and compiled by a stand-in for TorchNeuron's backend."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import BartConfig, BartForCausalLM, MambaConfig, MambaForCausalLM, PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import StaticDecoder, UnsupportedArchitecture
from decodekit.neuron_backend.adapters.static_cache_decoder import StaticCacheDecoder
from decodekit.neuron_backend.models.early_exit import first_layers
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import check_decoder

from ..targets.neuron.dynamo_stand_in import StandIn

Models = Callable[..., PreTrainedModel]

SHAPE: dict[str, Any] = {"batch_size": 2, "max_length": 48, "widths": (1, 5, 16), "scored_width": 5}
PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 9, 2, 44, 17, 3, 8, 9, 2, 44, 17, 5, 9], [60, 1, 30]]
# Full attention, a sliding window, both, learned positions, and learned positions with an offset.
NAMES = ["llama", "mistral", "gemma2", "gpt2", "opt"]


def made(model: PreTrainedModel, backend: StandIn | None = None, **shape: Any) -> StaticCacheDecoder:
    """A decoder over a copy of *model*, on the CPU."""
    compiled = (
        None if backend is None else partial(torch.compile, backend=backend, fullgraph=True, dynamic=False)
    )
    options = {**SHAPE, **shape}
    return StaticCacheDecoder(copy.deepcopy(model), device="cpu", compile=compiled, **options)


def generated(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """The model's own greedy text, of transformers."""
    ids = torch.tensor([prompt])
    found: Any = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return list(found[0, len(prompt) :].tolist())


@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_that_of_generate(name: str, tiny_model: Models) -> None:
    """Each of two rows at a position of its own, beyond the windows."""
    model = tiny_model(name, torch.float64)

    found = Generator(made(model), stop=MaxNewTokens(25))(PROMPTS).ids

    assert [generated(model, prompt, 25) for prompt in PROMPTS] == found


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_is_kept(name: str, tiny_model: Models) -> None:
    """Every width, ragged rows, padding, rewinds, stale slots and the last position."""
    check_decoder(made(tiny_model(name, torch.float64)))


@pytest.mark.parametrize("name", NAMES)
def test_an_overflow_ends_its_own_row_alone(name: str, tiny_model: Models) -> None:
    """It reaches no column before it, and no later text of its row."""
    decoder = made(tiny_model(name, torch.float64))
    head: Any = decoder._model.get_output_embeddings()
    # Not that of the embeddings, of which one spoils one logit of all columns.
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    with torch.no_grad():
        decoder._model.get_input_embeddings().weight[57] = torch.nan

    check_decoder(decoder, overflowing=[57])


class TestCompiled:
    @pytest.fixture(scope="class")
    @staticmethod
    def backend() -> StandIn:
        """TorchNeuron's backend, up to its compiler."""
        return StandIn()

    @pytest.fixture(scope="class")
    @staticmethod
    def compiled(backend: StandIn, tiny_model: Models) -> StaticCacheDecoder:
        """A compiled decoder of a model with two kinds of layers."""
        return made(tiny_model("gemma2", torch.float64), backend)

    @pytest.mark.parametrize("parts", [{}, {"sampler": Sample(seed=3)}], ids=["greedy", "sampled"])
    def test_drafts_leave_the_text_as_it_is(
        self, parts: dict[str, Any], compiled: StaticCacheDecoder, backend: StandIn, tiny_model: Models
    ) -> None:
        """Of plain decoding and of the toolkit's own decoder; and no forward compiles."""
        own = StaticDecoder(tiny_model("gemma2", torch.float64), **SHAPE)
        stop = MaxNewTokens(25)

        fast = SpeculativeGenerator(compiled, PromptLookup(), num_draft_tokens=4, stop=stop, **parts)(PROMPTS)

        assert Generator(own, stop=stop, **parts)(PROMPTS).ids == fast.ids
        assert Generator(compiled, stop=stop, **parts)(PROMPTS).ids == fast.ids
        assert sum(fast.statistics.drafted) > 0
        assert 3 == len(backend.graphs)

    def test_the_contract_is_kept(self, compiled: StaticCacheDecoder, backend: StandIn) -> None:
        """By the same graphs, one for each width."""
        check_decoder(compiled)

        assert 3 == len(backend.graphs)

    def test_graphs_write_the_cache_in_place(self, compiled: StaticCacheDecoder, backend: StandIn) -> None:
        """Each tensor of each layer is written as an input, and the logits are the only output."""
        layers = len(compiled._cache.layers)
        for graph in backend.graphs:
            writes = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
            (output,) = graph.graph.find_nodes(op="output")

            # Keys and values of each layer, and the marks of tokens that overflowed.
            assert 2 * layers + 1 == len({node.args[0] for node in writes})
            assert all(node.args[0].op == "placeholder" for node in writes)
            assert 1 == len(output.args[0])

    @pytest.mark.slow
    def test_more_widths_than_torch_compiles_by_itself(self, tiny_model: Models) -> None:
        """Its limit is 8 graphs of one function."""
        backend = StandIn()
        widths = tuple(range(1, 11))

        made(first_layers(tiny_model("llama"), 1), backend, widths=widths, scored_width=10, batch_size=1)

        assert 10 == len(backend.graphs)


class TestRefusals:
    def test_of_state_that_is_not_addressed_by_position(self) -> None:
        """Recurrent layers cannot be rewound."""
        config = MambaConfig(
            vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4, intermediate_size=32
        )

        with pytest.raises(UnsupportedArchitecture):
            made(MambaForCausalLM(config))

    def test_of_a_model_that_counts_slots_itself(self, tiny_model: Models) -> None:
        """BLOOM's ALiBi bias follows from the attention mask, so logits would differ."""
        with pytest.raises(UnsupportedArchitecture, match="Bloom"):
            made(tiny_model("bloom"))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("compiled", [False, True])
    def test_of_a_model_that_counts_positions_itself(self, compiled: bool, dtype: torch.dtype) -> None:
        """BART begins each forward at position 0, and is right there."""
        config = BartConfig(
            vocab_size=61,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            decoder_ffn_dim=48,
            max_position_embeddings=64,
        )

        with pytest.raises(UnsupportedArchitecture, match=r"BartForCausalLM.* differs from the stock model"):
            made(BartForCausalLM(config).to(dtype), StandIn() if compiled else None)

    @pytest.mark.parametrize(
        ("shape", "message"),
        [
            ({"widths": (5, 1)}, "'widths' must be ascending"),
            ({"max_length": 100000}, "'max_length' must be <="),
            ({"batch_size": 0}, "'batch_size' must be"),
        ],
    )
    def test_of_shapes(self, shape: dict[str, Any], message: str, tiny_model: Models) -> None:
        """By the rules of every decoder."""
        with pytest.raises(ValueError, match=message):
            made(tiny_model("llama"), **shape)

    def test_of_inputs(self, tiny_model: Models) -> None:
        """Before anything is written."""
        decoder = made(tiny_model("llama"))

        with pytest.raises(ValueError, match="as wide as one of"):
            decoder.forward(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
