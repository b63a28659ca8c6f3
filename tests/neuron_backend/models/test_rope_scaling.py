import copy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from decodekit.neuron_backend import CompiledDecoder, UnsupportedArchitecture, compile_decoder, load_decoder
from decodekit.neuron_backend.adapters.static_cache_decoder import StaticCacheDecoder
from decodekit.neuron_backend.models.weights import copy_sharing_weights

Models = Callable[..., PreTrainedModel]

ROTATIONS: dict[str, dict[str, Any]] = {
    "longrope": {
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
        "original_max_position_embeddings": 40,
        "partial_rotary_factor": 1.0,
    },
    "dynamic": {"factor": 4.0},
}


CONFIGS: dict[str, Callable[..., Any]] = {
    "longrope": partial(transformers.Phi3Config, original_max_position_embeddings=40),
    "dynamic": transformers.LlamaConfig,
}


@cache
def rotating(name: str) -> Any:
    """A model with frequencies that change with the length of a row."""
    config = CONFIGS[name](
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        rope_parameters={"rope_type": name, "rope_theta": 10_000.0, **ROTATIONS[name]},
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ROTATIONS)
class TestFixed:
    def test_rotates_as_the_stock_model(self, name: str) -> None:
        """Up to the last position, compared by hand."""
        model = rotating(name)
        decoder = CompiledDecoder(model, max_length=40, widths=(1, 4), tree_widths=(3,))
        ids = torch.arange(40)[None]
        for first in range(0, 40, 4):
            logits = decoder.forward(ids[:, first : first + 4], torch.tensor([first]))
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False).logits[:, -4:]

        torch.testing.assert_close(expected, logits, atol=1e-4, rtol=1e-4)

    def test_depends_on_nothing_that_was_run_before(self, name: str) -> None:
        """Frequencies that a long row left in the stock model are not taken over."""
        used = copy.deepcopy(rotating(name))
        with torch.no_grad():
            used(input_ids=torch.zeros(1, 150 if name == "dynamic" else 60, dtype=torch.int64))

        assert not torch.equal(used.model.rotary_emb.inv_freq, rotating(name).model.rotary_emb.inv_freq)

        decoder = CompiledDecoder(used, max_length=40, widths=(1, 4))

        assert torch.equal(
            rotating(name).model.rotary_emb.original_inv_freq,
            decoder.step.model.get_buffer("model.rotary_emb.inv_freq"),
        )

    def test_is_saved(self, name: str, tmp_path: Path) -> None:
        """With the frequencies of the stock model, twice: it is built without memory first."""
        decoder = compile_decoder(rotating(name), target="eager", weights="int8", max_length=40, widths=(4,))
        ids, start = torch.tensor([[3, 5, 7, 9]]), torch.tensor([0])
        expected = decoder.forward(ids, start)
        for folder in ("once", "twice"):
            decoder.save(tmp_path / folder)
            decoder = load_decoder(tmp_path / folder)

            assert torch.equal(expected, decoder.forward(ids, start))

    @pytest.mark.mostly_slow(every=2)
    def test_can_be_lowered(self, name: str) -> None:
        """Nothing depends on data, and only the cache is written."""
        decoder = CompiledDecoder(rotating(name), max_length=40, widths=(4,), spans=(40,))

        assert {"width_4_span_40": []} == decoder.lint()

    def test_leaves_the_model_alone(self, name: str) -> None:
        """The caller's model goes on as it is."""
        CompiledDecoder(rotating(name), max_length=40, widths=(1,))

        assert name == rotating(name).model.rotary_emb.rope_type


def test_rows_that_would_change_are_refused() -> None:
    """Longer than the original maximum; the probe is too short to detect it."""
    with pytest.raises(
        UnsupportedArchitecture, match=r"Phi3ForCausalLM .* 'max_length' must be <= 40: got 41"
    ):
        CompiledDecoder(rotating("longrope"), max_length=41, widths=(1, 4))


def test_rows_that_would_change_over_a_static_cache_are_refused() -> None:
    """Its model is used as it is: up to the original maximum, the frequencies are the same for every row."""
    shape: dict[str, Any] = {"widths": (1, 4), "device": "cpu", "compile": None}

    assert StaticCacheDecoder(copy.deepcopy(rotating("longrope")), max_length=40, **shape)
    with pytest.raises(UnsupportedArchitecture, match="'max_length' must be <= 40: got 41"):
        StaticCacheDecoder(copy.deepcopy(rotating("longrope")), max_length=41, **shape)


def test_other_rotations_are_not_touched(tiny_model: Models) -> None:
    """Static frequencies are kept."""
    twin: Any = copy_sharing_weights(tiny_model("llama"))
    before = twin.model.rotary_emb.inv_freq
    decoder = CompiledDecoder.unchecked(twin, CompiledDecoder(twin, max_length=32, widths=(1,)).shape)

    assert before is decoder.step.model.get_buffer("model.rotary_emb.inv_freq")
