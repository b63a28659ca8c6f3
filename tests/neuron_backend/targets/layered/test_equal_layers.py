"""Layers that run the same operations."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config

from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.neuron_backend.targets.cuda.cuda_step import kinds_of_layers
from decodekit.neuron_backend.targets.layered.equal_layers import equal_layers


class Shifted(nn.Module):
    """An activation with a constant that is neither a parameter nor a buffer."""

    def __init__(self, shift):
        super().__init__()
        self.shift = (torch.tensor(float(shift)),)

    def forward(self, x):
        """Any numbers."""
        return torch.relu(x + self.shift[0])


def found(model):
    """The layers of a small decoder."""
    decoder = StaticDecoder(model, max_length=64, widths=(1,))
    inputs = decoder.step.padding(1, decoder.cache, decoder.spans[0])
    return equal_layers(decoder.step, inputs, len(decoder.cache.states))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama", (0, 0)),
        ("mixtral", (0, 0)),
        ("opt", (0, 0)),
        ("gemma2", (0, 1)),
        ("gpt_neo", (0, 1)),
        ("deepseek_v3", (0, 1)),
    ],
)
def test_kinds(tiny_model, name, kinds):
    """Those of other masks or other modules are not equal."""
    equal = found(tiny_model(name))

    assert equal.kinds == kinds
    assert equal.needed == max(kinds) + 1


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2", "gpt_neo", "deepseek_v3"])
def test_kinds_without_computing(tiny_model, name):
    """As a GPU's target finds them: the same, and the cache is not written."""
    decoder = StaticDecoder(tiny_model(name), max_length=64, widths=(1,))
    before = [buffer.clone() for buffer in decoder.cache.tensors]
    computed, fake = found(tiny_model(name)), kinds_of_layers(decoder.step, 1, 64, decoder.cache)

    assert (computed.kinds, computed.name, computed.carried) == (fake.kinds, fake.name, fake.carried)
    assert all(map(torch.equal, before, decoder.cache.tensors))


def test_a_number_of_the_layer_makes_it_another():
    """Of GPT-2's, which divides scores by the number of the layer."""
    config = GPT2Config(
        n_embd=32, n_layer=3, n_head=4, vocab_size=61, n_positions=64, scale_attn_by_inverse_layer_idx=True
    )

    assert found(AutoModelForCausalLM.from_config(config).eval()).kinds == (0, 1, 2)


def test_windows():
    """Of every third layer."""
    config = Gemma3TextConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        sliding_window=16,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )

    assert found(AutoModelForCausalLM.from_config(config).eval()).kinds == (0, 0, 2, 0, 0, 2)


def test_layers_that_read_others_are_not_cut(tiny_model):
    """Gemma-3n's last layers attend to what earlier ones keep."""
    assert found(tiny_model("gemma3n")) is None


def test_a_constant_of_another_value_makes_another_layer(tiny_model):
    """Compared by value, since it is no weight."""
    model = AutoModelForCausalLM.from_config(tiny_model("llama").config).eval()
    for number, layer in enumerate(model.model.layers):
        layer.mlp.act_fn = Shifted(number)

    assert found(model).kinds == (0, 1)
