"""Tokens on which a model overflows: they end their own row, and reach no other result."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from decodekit.decoding import Draft, Generator, Greedy, History, MaxNewTokens, Sample
from decodekit.decoding.protocols import SamplesTokens
from decodekit.neuron_backend import StaticDecoder, compile_decoder
from decodekit.neuron_backend.kv_cache.overflow import largest_state
from decodekit.processors import SuppressTokens, Temperature
from decodekit.speculation import SpeculativeGenerator
from decodekit.testing import check_decoder

Models = Callable[..., PreTrainedModel]

NUMBERS = {57: torch.nan, 58: torch.inf, 59: -torch.inf}
"""Tokens whose embeddings are these numbers."""

OVERFLOWING = 7
"""The token on which the model of :func:`half` overflows."""

NEVER = SuppressTokens([OVERFLOWING])


def spoil(decoder: StaticDecoder) -> StaticDecoder:
    """Let *decoder* overflow on the tokens of :data:`NUMBERS`; its programs read its model's weights."""
    table = decoder.step.model.get_input_embeddings().weight
    with torch.no_grad():
        for token, number in NUMBERS.items():
            table[token] = number
    return decoder


@pytest.mark.mostly_slow(every=5)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_the_contract_is_kept_beside_them(name: str, dtype: str, tiny_model: Models) -> None:
    """Written over, behind the columns in the same forward, and behind them from an earlier one."""
    model = copy.deepcopy(tiny_model(name, getattr(torch, dtype)))
    decoder = StaticDecoder(model, batch_size=2, max_length=40, widths=(1, 4, 9), scored_width=4)

    tolerance = 1e-4 if dtype in ("float32", "float64") else 5e-2
    check_decoder(spoil(decoder), tolerance=tolerance, overflowing=list(NUMBERS))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_compiled_programs_keep_it_too(dtype: str, tiny_model: Models) -> None:
    """With the kernels, whose masks differ in float16."""
    model = copy.deepcopy(tiny_model("llama", getattr(torch, dtype)))
    decoder = compile_decoder(
        model, batch_size=2, max_length=40, widths=(1, 4, 9), scored_width=4, target="cpu"
    )

    check_decoder(spoil(decoder), tolerance=5e-2, overflowing=list(NUMBERS))


def test_a_tree_keeps_them_on_their_branch(tiny_model: Models) -> None:
    """Siblings score as before; the branch scores NaN, and its scratch slots are free for the next tree."""
    decoder = spoil(
        StaticDecoder(copy.deepcopy(tiny_model("llama")), max_length=40, widths=(1, 4), tree_widths=(4,))
    )
    start, parents = torch.tensor([4]), torch.tensor([[-1, 0, 0, 2]])
    decoder.forward(torch.tensor([[1, 2, 3, 4]]), torch.tensor([0]))
    expected = decoder.forward_tree(torch.tensor([[5, 6, 7, 8]]), start, parents).clone()
    for token in NUMBERS:
        spoiled = decoder.forward_tree(torch.tensor([[5, 6, token, 8]]), start, parents).clone()

        assert torch.equal(expected[:, :2], spoiled[:, :2])
        assert spoiled[:, 2:].isnan().all()
        assert torch.equal(expected, decoder.forward_tree(torch.tensor([[5, 6, 7, 8]]), start, parents))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_finite_garbage_is_hidden(dtype: torch.dtype, tiny_model: Models) -> None:
    """The largest numbers that are no overflow change no bit in slots that no column sees."""
    clean, dirty = (StaticDecoder(tiny_model("llama", dtype), max_length=40, widths=(1, 5)) for _ in range(2))
    for buffer in dirty.cache.tensors:
        buffer.fill_(largest_state(dtype))
    for first in range(0, 40, 5):
        ids, start = torch.arange(first, first + 5)[None], torch.tensor([first])

        assert torch.equal(clean.forward(ids, start), dirty.forward(ids, start))


@pytest.fixture(scope="module")
def half() -> PreTrainedModel:
    """A model in float16 whose MLP overflows on one token."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM(config).to(torch.float16).eval()
    with torch.no_grad():
        # Only that token has a first number, nothing adds to it, and one unit of each MLP multiplies it.
        model.model.embed_tokens.weight[:, 0] = 0
        model.model.embed_tokens.weight[OVERFLOWING, 0] = 100
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
            for part in (layer.mlp.gate_proj, layer.mlp.up_proj):
                part.weight[0] = 0
                part.weight[:, 0] = 0
                part.weight[0, 0] = 300
            layer.mlp.down_proj.weight[1:, 0] = 300
    return model


def decoder_of(model: PreTrainedModel, **shape: object) -> StaticDecoder:
    """A decoder that has not been compared, since the stock model's logits are not numbers."""
    decoder = StaticDecoder(LlamaForCausalLM(model.config).half(), max_length=100, **shape)
    decoder.step.model.load_state_dict(model.state_dict())
    return decoder


@pytest.mark.parametrize("widths", [(1, 5), (1, 16)])
@pytest.mark.parametrize(
    "parts",
    [
        {"processors": NEVER},
        {"processors": NEVER | Temperature(0.9), "sampler": Sample(seed=3)},
    ],
    ids=["greedy", "sampled"],
)
class TestGenerations:
    def test_a_prompt_that_overflows_leaves_nothing_behind(
        self, half: PreTrainedModel, widths: tuple[int, ...], parts: dict[str, object]
    ) -> None:
        """It ends with its reason; its neighbour and later generations are as they would be without it."""
        generator = Generator(decoder_of(half, batch_size=2, widths=widths), stop=MaxNewTokens(10), **parts)
        streams = {"random_streams": [0, 1]}
        expected = generator([[1, 2, 3], [4, 5, 6]], **streams)
        for spoiled in ([OVERFLOWING] * 30, [1, 2, OVERFLOWING], [OVERFLOWING, *range(10, 60)]):
            found = generator([spoiled, [4, 5, 6]], **streams)

            assert ["numeric_overflow", "max_new_tokens"] == found.finish_reasons
            assert [[], expected.ids[1]] == found.ids
            assert expected.ids == generator([[1, 2, 3], [4, 5, 6]], **streams).ids

    def test_a_wrong_draft_that_overflows_changes_no_token(
        self, half: PreTrainedModel, widths: tuple[int, ...], parts: dict[str, object]
    ) -> None:
        """It is rejected as any other wrong draft is."""

        class Wrong:
            def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
                return Draft(torch.full((len(budget), 3), OVERFLOWING))

        plain, fast = (
            Generator(decoder_of(half, widths=widths), stop=MaxNewTokens(20), **parts)([1, 2, 3]),
            SpeculativeGenerator(
                decoder_of(half, widths=widths), Wrong(), stop=MaxNewTokens(20), num_draft_tokens=3, **parts
            )([1, 2, 3]),
        )

        assert 20 == len(plain.ids[0])
        assert plain.ids == fast.ids


def test_a_decoder_that_samples_says_so_too(half: PreTrainedModel) -> None:
    """No token is sampled on the device."""
    decoder = decoder_of(half, widths=(1, 5))
    decoder.fuse(NEVER, Greedy())
    generator = Generator(decoder, processors=NEVER, stop=MaxNewTokens(10))

    assert ["numeric_overflow"] == generator([1, OVERFLOWING]).finish_reasons
    assert 10 == len(generator([1, 2]).ids[0])
