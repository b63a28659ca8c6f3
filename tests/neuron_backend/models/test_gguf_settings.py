"""Settings that transformers leaves out when it reads a GGUF file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Gemma4TextConfig
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from decodekit.neuron_backend import UnsupportedArchitecture, compile_decoder, load_decoder
from decodekit.neuron_backend.models.gguf_settings import apply_settings

from .test_gguf_file import made, write_gguf

pytest.importorskip("gguf")

FACTORS = torch.tensor([1.0, 1.0, 3.5, 8.0])
"""Of the four frequencies of a head."""


def decoder_of(path: Path) -> Any:
    return compile_decoder(path, target="eager", widths=(1, 8), max_length=64, progress=False)


def logits_of(decoder: Any) -> torch.Tensor:
    return decoder.forward(torch.arange(8)[None], torch.tensor([0])).clone()


def test_rope_factors_divide_the_frequencies(tmp_path: Path) -> None:
    """As llama.cpp divides the angle; also in a saved decoder, and in a model of its folder."""
    model = made("llama")
    plain = decoder_of(write_gguf(tmp_path / "plain.gguf", model, "llama"))
    path = write_gguf(tmp_path / "tiny.gguf", model, "llama", tensors={"rope_freqs.weight": FACTORS})
    decoder = decoder_of(path)
    decoder.save(tmp_path / "saved")
    frequencies = plain.step.model.model.rotary_emb.inv_freq / FACTORS

    torch.testing.assert_close(frequencies, decoder.step.model.model.rotary_emb.inv_freq)
    assert 1.0 == decoder.step.model.model.rotary_emb.attention_scaling
    assert not torch.allclose(logits_of(plain), logits_of(decoder), atol=1e-3)
    for other in (load_decoder(tmp_path / "saved"), decoder_of(tmp_path / "saved")):
        assert torch.equal(logits_of(decoder), logits_of(other))


def test_rope_factors_of_one_change_nothing(tmp_path: Path) -> None:
    """Nor the config."""
    path = write_gguf(
        tmp_path / "tiny.gguf", made("llama"), "llama", tensors={"rope_freqs.weight": torch.ones(4)}
    )

    assert "default" == decoder_of(path).step.model.config.rope_parameters["rope_type"]


def test_factors_that_the_config_has_change_nothing(tmp_path: Path) -> None:
    """Gemma 4's converter writes for a part of each head what transformers has as "proportional"."""
    config = Gemma4TextConfig(head_dim=8, global_head_dim=16)
    model = nn.Module()
    model.config = config
    rotated = int(config.rope_parameters["full_attention"]["partial_rotary_factor"] * 8)
    factors = torch.tensor([1.0] * rotated + [1e30] * (8 - rotated))
    paths = [tmp_path / "its.gguf", tmp_path / "other.gguf"]
    for path, tensor in zip(paths, (factors, factors.flip(0)), strict=True):
        write_gguf(path, made("llama"), "llama", tensors={"rope_freqs.weight": tensor})
    before = config.to_dict()

    apply_settings(model, paths[0])

    assert before == config.to_dict()
    with pytest.raises(UnsupportedArchitecture, match=r"rope_freqs.weight must be for one RoPE"):
        apply_settings(model, paths[1])


@pytest.mark.parametrize(
    ("settings", "tensors", "message"),
    [
        ({}, {"rope_freqs.weight": torch.ones(3) * 2}, r"rope_freqs.weight must have 4 factors > 0: got 3"),
        (
            {},
            {"rope_factors_long.weight": FACTORS},
            r"rope_factors_long.weight must be in the config .*default",
        ),
        ({}, {"rope_factors_short.weight": FACTORS}, r"rope_factors_short.weight must be in the config"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
            {},
            r"rope.scaling.type must be in the config .* whose own is default: got yarn",
        ),
        ({"rope.scaling.factor": 4.0}, {}, r"rope.scaling.type must be .*: got linear"),
        ({"rope.scale_linear": 4.0}, {}, r"rope.scaling.type must be .*: got linear"),
        ({"attention.sliding_window": 16}, {}, r"attention.sliding_window must be .* is None: got 16"),
    ],
)
def test_what_the_config_lacks_is_refused(
    settings: dict[str, Any], tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    """Other tokens would follow."""
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama", settings=settings, tensors=tensors)

    with pytest.raises(UnsupportedArchitecture, match=message):
        decoder_of(path)


def test_a_base_that_transformers_has_no_name_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an architecture that it reads without one."""
    monkeypatch.delitem(GGUF_CONFIG_MAPPING["llama"], "rope.freq_base")
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama", settings={"rope.freq_base": 5e5})

    with pytest.raises(UnsupportedArchitecture, match=r"rope.freq_base must be .* 10000.*: got 500000.0"):
        decoder_of(path)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope.scaling.type": "none"},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
        {"attention.sliding_window": 1024},
    ],
)
def test_what_changes_nothing_is_accepted(settings: dict[str, Any], tmp_path: Path) -> None:
    """No scaling, a factor of 1, a window as long as the context."""
    decoder_of(write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama", settings=settings))
