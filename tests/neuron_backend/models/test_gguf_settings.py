"""Settings that transformers leaves out when it reads a GGUF file."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Gemma4TextConfig

from decodekit.neuron_backend import UnsupportedArchitecture, compile_decoder, load_decoder
from decodekit.neuron_backend.models.gguf_file import load_gguf_config
from decodekit.neuron_backend.models.gguf_settings import complete_model

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


def test_turns_end_where_the_file_says(tmp_path: Path) -> None:
    """Chat models end a turn with another token than a text."""
    settings = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 7}
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama", settings=settings)
    decoder = decoder_of(path)

    assert decoder.generation_config is not None
    assert {1, 7} <= set(decoder.generation_config.eos_token_id)


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        ({5: "<end_of_turn>"}, {5}),
        ({5: "<|end|>", 6: "<|endoftext|>"}, {5, 6}),
        ({5: "<|end|>", 6: "<|return|>", 7: "<|call|>"}, {6, 7}),
        ({5: "</s>"}, set()),
    ],
)
def test_turns_end_at_tokens_by_their_names(names: dict[int, str], ends: set[int], tmp_path: Path) -> None:
    """Files of Phi-3 and Gemma give the end of a text alone; gpt-oss goes on after a message."""
    model = made("llama")
    tokens = [names.get(token, f"t{token}") for token in range(model.config.vocab_size)]
    settings = {"tokenizer.ggml.eos_token_id": 1}
    path = write_gguf(tmp_path / "tiny.gguf", model, "llama", settings=settings, tokens=tokens)
    decoder = decoder_of(path)

    assert decoder.generation_config is not None
    assert {1} | ends == set(decoder.generation_config.eos_token_id)


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

    complete_model(model, paths[0])

    assert before == config.to_dict()
    with pytest.raises(UnsupportedArchitecture, match=r"rope_freqs.weight must be for one RoPE"):
        complete_model(model, paths[1])


def test_biases_of_a_llama_are_read(tmp_path: Path) -> None:
    """Granite's, for which its file has no setting; tensors of other norms are refused."""
    model = made("llama", attention_bias=True, mlp_bias=True)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    decoder = decoder_of(write_gguf(tmp_path / "tiny.gguf", model, "llama"))
    read = decoder.step.model

    assert torch.equal(model.model.layers[0].mlp.up_proj.bias, read.model.layers[0].mlp.up_proj.bias)
    assert 7 == sum(
        name.startswith("model.layers.1.") and name.endswith("bias") for name in read.state_dict()
    )


def test_biases_of_a_falcon_are_read(tmp_path: Path) -> None:
    """Beside those of its norms, which it always has."""
    model = made("falcon", bias=True)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    read = decoder_of(write_gguf(tmp_path / "tiny.gguf", model, "falcon")).step.model
    biases = {name: tensor for name, tensor in model.state_dict().items() if name.endswith("bias")}

    assert len(biases) > 8
    for name, bias in biases.items():
        assert torch.equal(bias, read.state_dict()[name])


@pytest.mark.parametrize(("layers", "scalar"), [(2, 256), (46, 8)])
def test_the_scale_of_a_gemma_is_its_size_s(layers: int, scalar: int, tmp_path: Path) -> None:
    """That of 27B scales by the hidden size for each head; and bounds of logits are the file's."""
    settings = {"attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0}
    model = made("gemma2", num_hidden_layers=layers)
    config = load_gguf_config(write_gguf(tmp_path / "tiny.gguf", model, "gemma2", settings=settings))

    assert scalar == config.query_pre_attn_scalar
    assert (40.0, 20.0) == (config.attn_logit_softcapping, config.final_logit_softcapping)


def test_a_config_that_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    """Before it is compiled: a Phi-3 has no linear scaling."""
    path = write_gguf(tmp_path / "tiny.gguf", made("phi3"), "phi3", settings={"rope.scaling.factor": 4.0})

    with pytest.raises(UnsupportedArchitecture, match="its settings must fit each other"):
        decoder_of(path)


@pytest.mark.parametrize("tensor", ["blk.1.attn_q_norm.weight", "blk.0.attn_norm.bias"])
def test_weights_without_a_place_are_refused(tensor: str, tmp_path: Path) -> None:
    """The loader passes over them."""
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama", tensors={tensor: torch.ones(32)})

    with pytest.raises(UnsupportedArchitecture, match=f"each of its weights must have a place .*{tensor}"):
        decoder_of(path)


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


def scaled(rope: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """RoPE parameters with *changes*, of the layers that attend to the whole text."""
    if "full_attention" in rope:
        return {**rope, "full_attention": {**rope["full_attention"], **changes}}
    return {**rope, **changes}


@pytest.mark.parametrize(
    ("architecture", "settings", "rope", "window"),
    [
        ("llama", {"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}, None),
        ("llama", {"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}, None),
        ("gemma3", {"rope.scaling.factor": 8.0}, {"rope_type": "linear", "factor": 8.0}, None),
        ("starcoder2", {"rope.freq_base": 5e5}, {"rope_theta": 5e5}, None),
        ("phi3", {"attention.sliding_window": 4}, {}, 4),
    ],
)
def test_what_the_config_has_a_place_for_is_set(
    architecture: str, settings: dict[str, Any], rope: dict[str, Any], window: int | None, tmp_path: Path
) -> None:
    """As in a model with the file's weights and such a config, of the stock library."""
    model = made(architecture, num_hidden_layers=6)
    plain = decoder_of(write_gguf(tmp_path / "plain.gguf", model, architecture))
    path = write_gguf(tmp_path / "tiny.gguf", model, architecture, settings=settings)
    decoder = decoder_of(path)
    config = copy.deepcopy(plain.step.model.config)
    config.rope_parameters = scaled(config.rope_parameters, **rope)
    if window is not None:
        config.sliding_window = window
    stock = AutoModelForCausalLM.from_config(config).eval()
    stock.load_state_dict(decoder.step.model.state_dict())
    expected = stock(torch.arange(8)[None]).logits

    # Products of other shapes round differently, by processor: on a Xeon without AMX by 2e-5.
    torch.testing.assert_close(logits_of(decoder), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits_of(plain), expected, atol=1e-3)
    assert config.rope_parameters == load_gguf_config(path).rope_parameters


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
