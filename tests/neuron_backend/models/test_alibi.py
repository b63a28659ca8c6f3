import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.neuron_backend import StaticDecoder, UnsupportedArchitecture
from decodekit.neuron_backend.kv_cache.positioned_cache import PositionedCache
from decodekit.neuron_backend.models import alibi
from decodekit.neuron_backend.models.weights import copy_sharing_weights

Models = Callable[..., PreTrainedModel]

ALIBI = ["bloom", "mpt", "falcon_alibi"]


class TestSlopes:
    @pytest.mark.parametrize(
        "config",
        [
            pytest.param(transformers.BloomConfig(hidden_size=32, n_head=8, n_layer=1), id="bloom"),
            pytest.param(transformers.MptConfig(d_model=32, n_heads=8, n_layers=1), id="mpt"),
        ],
    )
    def test_are_the_papers(self, config: transformers.PreTrainedConfig) -> None:
        """Section 3: for eight heads, a geometric sequence from 1/2 to 1/256."""
        config.vocab_size = 9
        config.pad_token_id = config.bos_token_id = config.eos_token_id = None
        model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        slopes = copy_sharing_weights(model).base_model.get_buffer("alibi_slopes")

        assert [2.0**-power for power in range(1, 9)] == slopes.tolist()

    def test_of_falcon_are_rounded_as_it_rounds(self, tiny_model: Models) -> None:
        """Slope, position and product are each rounded to bfloat16."""
        table = copy_sharing_weights(tiny_model("falcon_alibi")).base_model.get_buffer("alibi_table")
        slopes = torch.tensor([2 ** (-power / 2) for power in range(1, 17)]).bfloat16()
        positions = torch.arange(128.0).bfloat16()

        assert torch.equal((slopes[:, None] * positions).float(), table)
        assert not torch.equal(slopes.float()[:, None] * positions.float(), table)


@pytest.mark.parametrize("name", ALIBI)
class TestRefusal:
    def test_of_a_slope_that_is_off(
        self, name: str, tiny_model: Models, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error of 1 % is detected by the comparison with the stock model."""
        keep = alibi._keep
        monkeypatch.setattr(alibi, "_keep", lambda body, key, bias: keep(body, key, 1.01 * bias))

        with pytest.raises(UnsupportedArchitecture, match="differs from the stock model"):
            StaticDecoder(tiny_model(name), max_length=40, widths=(1, 4))

    def test_of_a_tree_by_its_slots(
        self, name: str, tiny_model: Models, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A column in a scratch slot has the bias of its position, not of its slot."""

        def by_slot(cache: PositionedCache) -> Tensor:
            return cache._addresses.clamp(min=0)[None]

        monkeypatch.setattr(PositionedCache, "positions", property(by_slot))

        StaticDecoder(tiny_model(name), max_length=40, widths=(1, 4))
        with pytest.raises(UnsupportedArchitecture, match="scores a tree of width 6"):
            StaticDecoder(tiny_model(name), max_length=40, widths=(1, 4), tree_widths=(6,))


class TestDtypes:
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    @pytest.mark.parametrize("name", ALIBI)
    def test_of_half_precision_keep_the_bias(self, dtype: str, name: str, tiny_model: Models) -> None:
        """Slopes are not rounded with the weights, and are rounded where the stock model rounds them."""
        exact = copy_sharing_weights(tiny_model(name)).base_model.named_buffers()
        half = copy_sharing_weights(tiny_model(name), getattr(torch, dtype))
        kept = {key: buffer for key, buffer in exact if "alibi" in key}

        assert kept
        for key, buffer in kept.items():
            assert torch.equal(buffer, half.base_model.get_buffer(key))
        StaticDecoder(half, max_length=32, widths=(1, 4))

    def test_a_model_without_bias_is_not_touched(self, tiny_model: Models) -> None:
        """Falcon with RoPE is not adapted."""
        twin = copy_sharing_weights(tiny_model("falcon"))

        assert not [module for module in twin.modules() if "forward" in vars(module)]


def test_mpt_with_clipped_projections(tiny_model: Models) -> None:
    """Some MPT models clip their queries, keys and values."""
    model = copy.deepcopy(tiny_model("mpt"))
    body: Any = model.base_model
    for block in body.blocks:
        block.attn.clip_qkv = 0.2
    StaticDecoder(model, max_length=40, widths=(1, 4), tree_widths=(6,))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_falcon_in_either_attention(implementation: str, tiny_model: Models) -> None:
    """Both are served."""
    model = copy.deepcopy(tiny_model("falcon_alibi"))
    model.set_attn_implementation(implementation)
    StaticDecoder(model, max_length=40, widths=(1, 4), tree_widths=(6,))
