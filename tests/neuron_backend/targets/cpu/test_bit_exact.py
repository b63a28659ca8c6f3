"""A column's logits are the same bits at every width, beside any rows, and in any number of threads."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Qwen3MoeConfig,
)

from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.artifacts.machine import instruction_sets
from decodekit.neuron_backend.threads import on_threads

from ....toolchain_mark import needs_toolchain

pytestmark = [
    pytest.mark.slow,
    needs_toolchain,
]

LENGTH = 90
WIDTHS = (1, 20, 70)
SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
}


def fed(decoder, widths, others):
    """
    The logits of one text by column, fed to row 0 in chunks of *widths*.

    Beside it are random texts of the seed *others*, or padding.
    """
    ids = torch.full((decoder.shape.batch_size, LENGTH), -1)
    if others is not None:
        generator = torch.Generator().manual_seed(others)
        ids.random_(0, 60, generator=generator)
    ids[0] = torch.randint(0, 60, (LENGTH,), generator=torch.Generator().manual_seed(99))
    found, start = {}, 0
    for width in widths:
        end = min(start + width, LENGTH)
        program = min(each for each in decoder.shape.widths if each >= end - start)
        columns = torch.full((len(ids), program), -1)
        # Wide forwards score their last column, so their tokens are right-aligned.
        indent = program - (end - start) if program > decoder.shape.scored_width else 0
        columns[:, indent : indent + end - start] = ids[:, start:end]
        logits = decoder.forward(columns, torch.full((len(ids),), start - indent))[0].clone()
        if program > decoder.shape.scored_width:
            found[end - 1] = logits[-1]
        else:
            found.update({start + i: logits[i] for i in range(end - start)})
        start = end
    return found


def check(decoder):
    """One text, column by column and in chunks."""
    with on_threads(1):
        alone = fed(decoder, [1] * LENGTH, others=0)
    assert set(alone) == set(range(LENGTH))
    for threads in (1, 2):
        for number, widths in enumerate([[20] * 5, [70, 20], [7] * 13, [70] + [1] * 20, [37, 21, 32]]):
            for others in (number, None):
                with on_threads(threads):
                    found = fed(decoder, widths, others)
                for column, logits in found.items():
                    assert torch.equal(alone[column], logits), (threads, widths, others, column)


@pytest.mark.parametrize(
    ("name", "dtype", "weights"),
    [
        ("llama", torch.bfloat16, "int4"),
        ("llama", torch.float32, "int8"),
        ("llama", torch.bfloat16, None),
        ("qwen3", torch.float16, None),
        ("gpt_neox", torch.float32, None),
        ("mixtral", torch.bfloat16, None),
        ("gpt_oss", torch.float32, None),
        ("gpt_oss", torch.bfloat16, None),
        ("gemma2", torch.float32, None),
        ("gpt2", torch.float16, None),
        ("llama4", torch.bfloat16, None),
        ("deepseek_v3", torch.float32, None),
    ],
    ids=str,
)
def test_of_a_family(tiny_model, name, dtype, weights):
    """The decoder says so."""
    decoder = compile_decoder(
        tiny_model(name),
        target="cpu",
        batch_size=2,
        max_length=128,
        widths=WIDTHS,
        dtype=dtype,
        weights=weights,
    )

    assert decoder.bit_exact
    check(decoder)


@pytest.mark.parametrize("limit", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize(
    ("dtype", "weights"), [(torch.bfloat16, "int4"), (torch.float32, "int8"), (torch.bfloat16, None)], ids=str
)
def test_with_fewer_instructions(monkeypatch, tiny_model, limit, dtype, weights):
    """As on a processor without tiles, without AVX-512, or without vectors that we know."""
    monkeypatch.setenv("DECODEKIT_MAX_CPU_ISA", limit)
    decoder = compile_decoder(
        tiny_model("llama"),
        target="cpu",
        batch_size=2,
        max_length=128,
        widths=WIDTHS,
        dtype=dtype,
        weights=weights,
    )

    assert decoder.bit_exact
    assert "AMX" not in decoder.kernels
    assert ("AVX-512" not in decoder.kernels) or limit == "avx512"
    assert ("portable" in decoder.kernels) or limit != "portable"
    assert ("AVX2" in decoder.kernels) or limit != "avx2" or not {"avx2", "fma"}.issubset(instruction_sets())
    check(decoder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config",
    [
        Gemma3TextConfig(
            **SMALL, head_dim=12, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
        ),
        Phi3Config(**SMALL),
    ],
    ids=lambda config: config.model_type,
)
def test_of_a_config(config, dtype):
    """Rotary tables of single numbers and of vectors are the same, for example."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    decoder = compile_decoder(model, target="cpu", batch_size=2, max_length=128, widths=WIDTHS, dtype=dtype)

    assert decoder.bit_exact
    check(decoder)


@pytest.mark.parametrize(
    "config",
    [
        # Layer norms, of few numbers and of many.
        GPT2Config(vocab_size=61, n_embd=40, n_layer=2, n_head=4, n_positions=128),
        GPTNeoXConfig(**{**SMALL, "hidden_size": 768, "num_hidden_layers": 1}),
        # Sums over a token's experts.
        GptOssConfig(**SMALL, head_dim=16, num_local_experts=8, num_experts_per_tok=4),
        # Complex products, of few numbers.
        Llama4TextConfig(**SMALL, head_dim=4, intermediate_size_mlp=48, num_local_experts=2),
        Qwen3MoeConfig(
            **SMALL,
            head_dim=8,
            num_experts=8,
            num_experts_per_tok=5,
            norm_topk_prob=True,
            moe_intermediate_size=24,
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_of_a_row_alone(config):
    """Of one row, a forward of one column sums a single row; Inductor writes such sums in another way."""
    torch.manual_seed(0)
    config.initializer_range = 0.2
    model = AutoModelForCausalLM.from_config(config).eval()
    decoder = compile_decoder(model, target="cpu", batch_size=1, max_length=128, widths=WIDTHS)

    assert decoder.bit_exact
    check(decoder)


def test_of_rows_that_threads_could_share():
    """Norms over many numbers: a sum over a single row is not divided among the threads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=2048,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        head_dim=16,
        num_key_value_heads=2,
    )
    decoder = compile_decoder(
        LlamaForCausalLM(config).eval(), target="cpu", batch_size=1, max_length=128, widths=WIDTHS
    )

    check(decoder)


@pytest.mark.parametrize("name", ["bloom", "gemma3n"])
def test_is_not_said_where_torch_multiplies(tiny_model, name):
    """Scores with distances added, and a model's small products: in an order that depends on the rows."""
    assert not compile_decoder(tiny_model(name), target="cpu", max_length=32, widths=(1,)).bit_exact


def test_is_not_said_of_trees(tiny_model):
    """A decoder that scores trees is not, since the slots of other branches lie between a column's."""
    model = tiny_model("llama")

    assert not compile_decoder(model, target="cpu", max_length=32, widths=(1,), tree_widths=(4,)).bit_exact
