"""Packed weights of CPU programs, which give the same results."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from decodekit.neuron_backend import compile_decoder, load_decoder
from decodekit.neuron_backend.targets.cpu import aoti, packed_weights
from decodekit.neuron_backend.targets.cpu.kernel_library import MOST_ROWS
from decodekit.neuron_backend.targets.cpu.packed_weights import PackedNames, PackedWeights

# More rows than any kernel but oneDNN's takes.
WIDTHS = (MOST_ROWS + 1, MOST_ROWS + 4)


@pytest.fixture
def given_constants(monkeypatch):
    """Every constant that programs are given during the test, by name."""
    seen = {}
    wanted = aoti._wanted

    def record(names, tensors):
        seen.update(wanted(names, tensors))
        return wanted(names, tensors)

    monkeypatch.setattr(aoti, "_wanted", record)
    return seen


def layouts(given_constants):
    """Names of opaque constants, and of opaque integers."""
    opaque = {name for name, tensor in given_constants.items() if tensor.layout is torch._mkldnn}
    return opaque, {name for name in opaque if given_constants[name].dtype is torch.int8}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("weights", [None, "int8"])
def test_every_product_reads_packed_weights(tiny_model, given_constants, tied, weights, tmp_path):
    """Also the head, even if it is tied; logits are the same after loading."""
    config = copy.deepcopy(tiny_model("llama").config)
    config.tie_word_embeddings = tied
    model = AutoModelForCausalLM.from_config(config).eval()
    shapes = {"max_length": 32, "widths": WIDTHS, "weights": weights}
    eager = compile_decoder(model, target="eager", **shapes)
    compiled = compile_decoder(model, target="cpu", **shapes)
    opaque, integers = layouts(given_constants)
    compiled.save(tmp_path / "saved")
    given_constants.clear()
    loaded = load_decoder(tmp_path / "saved")

    layers = model.config.num_hidden_layers
    # Fused queries, keys and values; fused gate and up; output; down; and the head.
    assert 4 * layers + 1 == len(opaque)
    assert opaque == layouts(given_constants)[0]
    assert (opaque if weights else set()) == integers
    assert tied == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)
    ids, start = torch.arange(WIDTHS[0])[None], torch.tensor([0])
    expected = eager.forward(ids, start)
    torch.testing.assert_close(compiled.forward(ids, start), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(compiled.forward(ids, start), loaded.forward(ids, start))


@pytest.mark.slow
def test_programs_share_packed_weights(tiny_model, given_constants, monkeypatch):
    """One copy of each weight for any number of widths."""
    made = []
    pack = PackedWeights._float
    monkeypatch.setattr(PackedWeights, "_float", lambda self, plain: made.append(plain) or pack(self, plain))
    model = tiny_model("llama")
    compile_decoder(model, target="cpu", max_length=32, widths=WIDTHS)

    assert 4 * model.config.num_hidden_layers + 1 == len(made)


def test_a_weight_with_another_reader_is_not_packed():
    """Such as an embedding."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.own = (
                torch.nn.Parameter(torch.randn(8, 4)),
                torch.nn.Parameter(torch.randn(8, 4)),
            )

        def forward(self, x):
            linear = torch.ops.mkldnn._linear_pointwise
            return (
                linear(x, self.table, None, "none", [], "")
                + self.table[0, 0]
                + linear(x, self.own, None, "none", [], "")
            )

    with torch.no_grad():
        exported = torch.export.export(Tied(), (torch.randn(2, 4),))

    assert PackedNames(("own",), ()) == PackedNames.of(exported)
    assert PackedNames((), ()) == PackedNames.from_metadata({})
    written = {packed_weights.METADATA: PackedNames.of(exported).to_json()}
    assert PackedNames(("own",), ()) == PackedNames.from_metadata(written)
