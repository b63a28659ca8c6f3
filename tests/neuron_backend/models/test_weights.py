import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.models.weights import (
    align,
    copy_sharing_weights,
    count_weights,
    derived_buffers,
    weight_dtype,
)
from decodekit.neuron_backend.quantization.int8_linear import Int8Linear
from decodekit.neuron_backend.quantization.quantized import quantize


class TestAdopt:
    """Copying a model that shares its weights."""

    def test_converts_weights_and_keeps_rotary_frequencies(self, tiny_model):
        """As a model loads in a dtype: what is computed from the config stays float32."""
        model = tiny_model("llama")

        twin = copy_sharing_weights(model, torch.bfloat16)

        assert {torch.bfloat16} == {weight.dtype for weight in twin.parameters()}
        assert {torch.float32} == {buffer.dtype for buffer in derived_buffers(twin).values()}
        assert torch.float32 == model.dtype

    def test_keeps_tied_weights_tied(self, tiny_model):
        """One tensor under two names stays one, converted or not."""
        for dtype in (None, torch.float64):
            twin = copy_sharing_weights(tiny_model("opt"), dtype)

            assert twin.lm_head.weight is twin.model.decoder.embed_tokens.weight

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    @pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss"])
    def test_gives_the_tensors_that_loading_in_the_dtype_gives(self, name, dtype, tiny_model, tmp_path):
        """Routers keep float32 in every dtype, and norms of GPT-OSS in float16."""
        tiny_model(name).save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).state_dict()

        converted = copy_sharing_weights(tiny_model(name), dtype).state_dict()

        assert loaded.keys() == converted.keys()
        for key, tensor in loaded.items():
            assert tensor.dtype == converted[key].dtype, key
            assert torch.equal(tensor, converted[key]), key

    def test_keeps_the_codes_of_quantised_weights(self, tiny_model):
        """Floating tensors of 8 bits mean nothing without their scales."""
        model = copy_sharing_weights(tiny_model("llama"))
        quantize(model, "float8")

        twin = copy_sharing_weights(model, torch.bfloat16)

        layer, found = model.model.layers[0].mlp.up_proj, twin.model.layers[0].mlp.up_proj
        assert torch.float8_e4m3fn == found.quantized.dtype
        assert found.quantized is layer.quantized
        assert torch.bfloat16 == found.scale.dtype


class TestAlign:
    """Memory in which kernels give the same bits, wherever the weights come from."""

    def test_copies_a_mapped_file(self, tiny_model):
        """In which tensors lie anywhere; ties stay."""
        model = copy_sharing_weights(tiny_model("opt"))
        weight = model.lm_head.weight
        # As safetensors cuts a file.
        mapped = torch.empty(0).set_(torch.UntypedStorage(weight.nbytes + 8)[8:], 0, weight.shape)
        model.lm_head.weight = model.model.decoder.embed_tokens.weight = nn.Parameter(mapped.copy_(weight))
        before = dict(model.named_parameters())

        align(model)

        assert mapped.data_ptr() % 64
        assert 0 == model.lm_head.weight.data_ptr() % 64
        assert torch.equal(weight, model.lm_head.weight)
        assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
        after = dict(model.named_parameters())
        assert ["model.decoder.embed_tokens.weight"] == [n for n in after if after[n] is not before[n]]

    def test_keeps_what_torch_has_allocated(self, tiny_model):
        """Rows of a larger tensor too, wherever they begin."""
        model = copy_sharing_weights(tiny_model("qwen2"))
        bias = model.model.layers[0].self_attn.k_proj.bias
        model.model.layers[0].self_attn.k_proj.bias = rows = nn.Parameter(torch.cat([bias, bias])[1:])
        before = dict(model.named_parameters())

        align(model)

        assert all(before[name] is weight for name, weight in model.named_parameters())
        assert rows.data_ptr() % 64


class TestCount:
    """The numbers of a model."""

    def test_is_of_quantised_weights_too(self, tiny_model):
        """Which are buffers."""
        model = copy_sharing_weights(tiny_model("llama"))
        before = count_weights(model)
        quantize(model, "int8")

        assert before == sum(
            tensor.numel() for tensor in (*model.parameters(), *derived_buffers(model).values())
        ) + (sum(layer.quantized.numel() for layer in model.modules() if isinstance(layer, Int8Linear)))
        assert count_weights(model) >= before

    def test_counts_a_tied_weight_once(self, tiny_model):
        """As its memory is needed once."""
        model = tiny_model("opt")

        assert model.num_parameters() == count_weights(model)


class TestDtype:
    """Naming a dtype."""

    @pytest.mark.parametrize("dtype", [torch.float16, "float16", "torch.float16"])
    def test_is_a_torch_dtype_or_its_name(self, dtype):
        """All forms give the same dtype."""
        assert torch.float16 == weight_dtype(dtype)

    @pytest.mark.parametrize("dtype", [torch.int8, "half", "float8_e4m3fn", 16])
    def test_is_one_of_four(self, dtype):
        """Anything else is named in the error."""
        with pytest.raises(ValueError, match="'dtype' must be one of float32, bfloat16, float16, float64"):
            weight_dtype(dtype)


def test_a_loss_of_training_is_left_out(tiny_model):
    """A mixture's router has one, which its config may ask for."""
    model = copy.deepcopy(tiny_model("mixtral"))
    model.config.output_router_logits = True
    decoder = compile_decoder(model, target="eager", max_length=16, widths=(1, 4))

    assert model.config.output_router_logits
    assert not decoder.step.model.config.output_router_logits
    ids = torch.tensor([[3, 1, 4, 1]])
    plain = compile_decoder(tiny_model("mixtral"), target="eager", max_length=16, widths=(1, 4))
    assert torch.equal(plain.forward(ids, torch.tensor([0])), decoder.forward(ids, torch.tensor([0])))
