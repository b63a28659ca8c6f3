import pytest
import torch

from decodekit.neuron_backend.models.weights import copy_sharing_weights, derived_buffers, weight_dtype


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
