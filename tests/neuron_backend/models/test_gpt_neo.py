from collections.abc import Callable

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from decodekit.neuron_backend import StaticDecoder, UnsupportedArchitecture
from decodekit.neuron_backend.kv_cache.masks import MaskPlan, Reach

Models = Callable[..., PreTrainedModel]


@pytest.mark.parametrize("window", [15, 17])
def test_a_window_that_is_one_off_is_refused(
    window: int, tiny_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local layers have the window of the stock model."""
    wrong = MaskPlan({"global": Reach(), "local": Reach(window=window)})
    monkeypatch.setattr(MaskPlan, "of", classmethod(lambda cls, model: wrong))

    with pytest.raises(UnsupportedArchitecture, match=r"GPTNeoForCausalLM .* differs"):
        StaticDecoder(tiny_model("gpt_neo"), max_length=40, widths=(1, 4))


@pytest.mark.parametrize("kind", ["global", "local"])
def test_layers_of_one_kind_are_served(kind: str) -> None:
    """Then there is one mask for all of them."""
    config = transformers.GPTNeoConfig(
        vocab_size=61,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=64,
        attention_types=[[[kind], 2]],
        window_size=16,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.GPTNeoForCausalLM(config)

    decoder = StaticDecoder(model, max_length=40, widths=(1, 4), tree_widths=(6,))

    assert [kind] == list(decoder.step.plan.reaches)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_served(dtype: str, tiny_model: Models) -> None:
    """Scores stay in float32, as in the stock model."""
    StaticDecoder(tiny_model("gpt_neo"), max_length=32, widths=(1, 4), dtype=dtype)
