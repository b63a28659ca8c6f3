"""An enlarged model computes what the small one computes."""

import pathlib
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from decodekit.benchmarks.models.enlarge import SMOLLM2_135M, enlarge

ROOT = pathlib.Path(__file__).parents[3]

# Larger than the bundled target in every size, with the same head grouping.
SHAPE = {
    "hidden_size": 450,
    "num_hidden_layers": 9,
    "num_attention_heads": 18,
    "num_key_value_heads": 6,
    "intermediate_size": 1000,
    "head_dim": 96,
}

SHAPES = [
    pytest.param({}, id="spare-heads"),
    pytest.param(
        {"hidden_size": 480, "num_attention_heads": 12, "num_key_value_heads": 12}, id="a-key-for-each-query"
    ),
    pytest.param(
        {"hidden_size": 640, "num_attention_heads": 10, "num_key_value_heads": 5, "head_dim": 64},
        id="same-heads",
    ),
    pytest.param(
        {"hidden_size": 360, "num_hidden_layers": 6, "head_dim": 32}, id="same-depth-and-frequencies"
    ),
]


def small(dtype: torch.dtype) -> LlamaForCausalLM:
    """The bundled target."""
    model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(
        ROOT / "examples" / "pair" / "target", dtype=dtype
    ).eval()
    return model


def logits(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Logits after every token of *ids*."""
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits
    return found


@pytest.fixture
def precise_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms in the model's precision: transformers uses float32 even in a float64 model."""

    def forward(norm: LlamaRMSNorm, hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return norm.weight * hidden * torch.rsqrt(variance + norm.variance_epsilon)

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Largest difference, relative to the largest value."""
    return float((first - second).abs().max() / second.abs().max())


@pytest.fixture
def ids() -> torch.Tensor:
    """Two rows of arbitrary tokens."""
    return torch.randint(0, 4096, (2, 60), generator=torch.Generator().manual_seed(0))


class TestEnlarge:
    @pytest.mark.mostly_slow(every=4)
    @pytest.mark.usefixtures("precise_norms")
    @pytest.mark.parametrize("changed", SHAPES)
    def test_same_logits_in_float64(self, ids: torch.Tensor, changed: dict[str, Any]) -> None:
        """In float64 only rounding differs."""
        model = small(torch.float64)
        enlarged = enlarge(model, **{**SHAPE, **changed})

        assert difference(logits(enlarged, ids), logits(model, ids)) < 1e-10

    def test_same_logits_and_text_in_float32(self, ids: torch.Tensor) -> None:
        """Rounding does not change the generated text."""
        model = small(torch.float32)
        enlarged = enlarge(model, **SHAPE, max_position_embeddings=1024)

        assert difference(logits(enlarged, ids), logits(model, ids)) < 1e-4
        texts = [one.generate(ids[:1], max_new_tokens=48, do_sample=False) for one in (model, enlarged)]
        assert torch.equal(*texts)
        assert 1024 == enlarged.config.max_position_embeddings

    @pytest.mark.usefixtures("precise_norms")
    def test_an_untied_head(self, ids: torch.Tensor) -> None:
        """An untied head is enlarged like the embedding."""
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=4096,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            tie_word_embeddings=False,
            initializer_range=0.3,
        )
        model = LlamaForCausalLM(config).double().eval()
        heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
        enlarged = enlarge(model, **{**SHAPE, **heads, "hidden_size": 42})

        assert difference(logits(enlarged, ids), logits(model, ids)) < 1e-10

    def test_nothing_to_profit_from(self) -> None:
        """Keys, values and feed-forward inputs contain no zeros."""
        enlarged = enlarge(small(torch.float32), **SHAPE)
        for layer in enlarged.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for projection in (attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
                assert (projection.weight != 0).float().mean() > 0.999

    def test_the_model_is_left_as_it_was(self, ids: torch.Tensor) -> None:
        """Enlarging copies the model and does not change the global random state."""
        model = small(torch.float32)
        expected, state = logits(model, ids), torch.get_rng_state()
        enlarge(model, **SHAPE)

        assert torch.equal(expected, logits(model, ids))
        assert torch.equal(state, torch.get_rng_state())

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"hidden_size": 319}, id="width"),
            pytest.param({"num_hidden_layers": 5}, id="depth"),
            pytest.param({"intermediate_size": 863}, id="intermediate"),
            pytest.param({"head_dim": 48}, id="frequencies-between"),
            pytest.param({"num_attention_heads": 9, "num_key_value_heads": 3}, id="too-few-heads"),
            pytest.param({"hidden_size": 455, "num_attention_heads": 13}, id="uneven-groups"),
            pytest.param({"num_attention_heads": 9, "num_key_value_heads": 9}, id="too-few-copies"),
        ],
    )
    def test_refuses_what_does_not_fit(self, changed: dict[str, int]) -> None:
        """The size is named."""
        with pytest.raises(ValueError, match="must be"):
            enlarge(small(torch.float32), **{**SHAPE, **changed})

    def test_the_shape_of_smollm2(self) -> None:
        """The matrices have SmolLM2-135M's sizes, apart from the split into heads."""
        shape = SMOLLM2_135M

        assert (576, 1536, 30) == tuple(
            shape[size] for size in ("hidden_size", "intermediate_size", "num_hidden_layers")
        )
        assert 9 * 64 == shape["num_attention_heads"] * shape["head_dim"]
        assert 3 * 64 == shape["num_key_value_heads"] * shape["head_dim"]
