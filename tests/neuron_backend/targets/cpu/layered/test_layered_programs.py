"""Programs of one function a kind of layer equal those that AOTInductor compiles as a whole."""

import logging
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.models.fused_projections import fuse_projections
from decodekit.neuron_backend.program_facts import any_skips_padding
from decodekit.neuron_backend.quantization.quantized import quantize
from decodekit.neuron_backend.quantization.quantized_matmul import arrange_for_kernels
from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.neuron_backend.step import tensors_of
from decodekit.neuron_backend.targets.compiler_cache import private_compiler_cache
from decodekit.neuron_backend.targets.cpu import aoti, program_objects
from decodekit.neuron_backend.targets.cpu.kernel_selection import library
from decodekit.neuron_backend.targets.cpu.layered import program_lowering
from decodekit.neuron_backend.targets.cpu.layered.layered_program import LayeredProgram
from decodekit.neuron_backend.targets.cpu.program_loading import load_program

from .....toolchain_mark import needs_toolchain

pytestmark = needs_toolchain

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
}


def layers_of(count, **changes):
    """A Llama of so many layers."""
    torch.manual_seed(0)
    config = LlamaConfig(**{**SMALL, "num_hidden_layers": count, "initializer_range": 0.3, **changes})
    return AutoModelForCausalLM.from_config(config).eval()


def both(model, width, max_length=128):
    """The same step compiled in both forms, over the caches of two decoders; and the lowered program."""
    decoders = [StaticDecoder(model, batch_size=2, max_length=max_length, widths=(width,)) for _ in range(2)]
    dtype = decoders[0].step.model.dtype
    for decoder in decoders:
        arrange_for_kernels(decoder.step.model)
        decoder.step.fused = fuse_projections(decoder.step.model)
    first, second = decoders
    kernels = library(dtype)
    with private_compiler_cache():
        lowered = program_lowering.lower_program(first.step, first.cache, width, first.spans, "same", kernels)
        layered = lowered.built(kernels, program_objects.pool_objects())
        whole = aoti.compile_package(second.step, second.cache, width, second.spans, "same", kernels)
    for decoder, package in ((first, layered), (second, whole)):
        tensors = tensors_of(decoder.step)
        decoder.programs = {width: load_program(package, tensors, decoder.cache, "same")}
    return first, second, lowered


def check(first, second, width, alike=torch.equal):
    """Logits and caches, in each span, for ragged and padded rows."""
    generator = torch.Generator().manual_seed(1)
    length = first.shape.max_length
    for start in (0, 3, length // 2, length - width):
        ids = torch.randint(0, 61, (2, width), generator=generator)
        ids[0, 0] = -1
        positions = torch.tensor([start, start // 2])

        # Those of padding are not defined.
        logits = [decoder.forward(ids, positions)[ids >= 0] for decoder in (first, second)]

        assert alike(*logits)
        # Nothing attends to the spare slot, which recording writes to.
        held = [[tensor[:, :, 1:] for tensor in decoder.cache.tensors] for decoder in (first, second)]
        assert all(map(alike, *held))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "weights"),
    [
        ("llama", torch.float32, None),
        ("qwen3", torch.bfloat16, None),
        ("mistral", torch.float16, None),
        ("gpt_neox", torch.float32, None),
        ("opt", torch.float32, None),
        ("phi", torch.bfloat16, None),
        ("llama", torch.float32, "int8"),
        ("qwen2", torch.bfloat16, "int4"),
    ],
    ids=str,
)
def test_equals_the_whole_program(tiny_model, name, dtype, weights):
    """
    Every tensor of the cache as well: bit for bit in 16 bits.

    The functions of single numbers (sine, exponential) of a whole program round as libm's do, which
    float32 shows, and quantized inputs that so fall on the other side of a half.
    """
    model = tiny_model(name, dtype)
    if weights is not None:
        model = AutoModelForCausalLM.from_config(model.config).to(dtype).eval()
        quantize(model, weights)

    first, second, lowered = both(model, 5)

    assert isinstance(first.programs[5], LayeredProgram)
    assert isinstance(second.programs[5], aoti.CompiledProgram)
    assert first.programs[5].kernels == second.programs[5].kernels
    # Of the whole program it is not said, though it may be.
    assert first.programs[5].bit_exact
    assert not second.programs[5].bit_exact
    # Nor is it given the ids of padding.
    assert any_skips_padding(first.programs.values())
    assert not any_skips_padding(second.programs.values())
    assert len(lowered.calls.layers) == 1
    tolerance = 1e-5 if weights is None else 0.05
    close = partial(torch.allclose, rtol=tolerance, atol=tolerance)
    check(first, second, 5, alike=close if dtype is torch.float32 else torch.equal)


@pytest.mark.slow
def test_two_kinds_of_layers():
    """
    Windows of attention, in turn with none.

    In the whole program the last norm of a layer and the first of the next are one loop, which adds up
    in another order.
    """
    torch.manual_seed(0)
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    config = Gemma3TextConfig(
        **SMALL, num_hidden_layers=6, head_dim=12, sliding_window=16, layer_types=kinds * 2
    )
    model = AutoModelForCausalLM.from_config(config).eval()

    first, second, lowered = both(model, 4, max_length=300)

    assert len(first.spans) == 3
    assert lowered.calls.kinds == (0, 0, 1, 0, 0, 1)
    check(first, second, 4, alike=partial(torch.allclose, rtol=1e-4, atol=1e-5))


@pytest.mark.slow
def test_products_over_slots_are_not_taken_for_columns(tiny_model):
    """DeepSeek multiplies what all slots hold, which are as many as columns in the shorter span here."""
    options = {"max_length": 64, "widths": (1, 17), "spans": (16, 64), "scored_width": 17}
    plain, compiled = (
        compile_decoder(tiny_model("deepseek_v3"), target=target, **options) for target in ("eager", "cpu")
    )
    ids = torch.full((1, 17), -1)
    ids[0, :10] = torch.arange(10)
    start = torch.zeros(1, dtype=torch.int64)

    assert isinstance(compiled.programs[17], LayeredProgram)
    assert 17 == len(compiled.cache.addresses(16))
    expected, found = (decoder.forward(ids, start, 16)[:, :10] for decoder in (plain, compiled))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_more_layers_are_not_more_calls():
    """The source grows by the table of pointers alone."""
    decoders = [StaticDecoder(layers_of(count), max_length=64, widths=(1,)) for count in (2, 6)]

    few, many = (
        program_lowering.lower_program(d.step, d.cache, 1, d.spans, "any", library(torch.float32)).calls
        for d in decoders
    )

    assert few.main[0].calls == many.main[0].calls
    assert few.layers == many.layers
    assert (len(few.own), len(many.own)) == (2, 6)


def test_layers_read_their_own_tensors():
    """No tensor is a layer's twice, and none is another's."""
    decoder = StaticDecoder(layers_of(3), max_length=64, widths=(1,))
    kernels = library(torch.float32)

    lowered = program_lowering.lower_program(decoder.step, decoder.cache, 1, decoder.spans, "any", kernels)

    assert len(set(lowered.own)) == len(lowered.own)
    per_layer = len(lowered.own) // 3
    for layer in range(3):
        names = lowered.own[layer * per_layer : (layer + 1) * per_layer]
        weights = [name for name in names if name.startswith("model.")]
        assert weights
        assert all(f".layers.{layer}." in name for name in weights)


@pytest.mark.slow
def test_other_operations_are_compiled_as_a_whole(tiny_model, caplog):
    """With the reason in the log."""
    with caplog.at_level(logging.INFO, logger="decodekit"):
        decoder = compile_decoder(
            tiny_model("llama", torch.float64), target="cpu", max_length=32, widths=(1,)
        )

    assert isinstance(decoder.programs[1], aoti.CompiledProgram)
    assert "width_1 is compiled as a whole: aten.mm.out is computed by torch" in caplog.text


def test_torch_s_default_device_changes_nothing(compiled_llama):
    """Outputs are made for native code, which writes to their memory."""
    ids, start = torch.tensor([[3], [5]]), torch.zeros(2, dtype=torch.int64)
    expected = compiled_llama.forward(ids, start)
    with torch.device("meta"):
        found = compiled_llama.forward(ids, start)

    assert torch.equal(expected, found)


def test_a_failure_is_an_error(compiled_llama):
    """Not an end of the process."""
    program = compiled_llama.programs[1]
    assert isinstance(program, LayeredProgram)
    ids = torch.full((2, 1), 10**6)

    with pytest.raises(RuntimeError, match=r"a program failed: .*index out of bounds"):
        program(ids, torch.zeros(2, dtype=torch.int64), compiled_llama.cache.addresses(64))
