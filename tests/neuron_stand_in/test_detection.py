"""That the stand-ins are found as the packages would be."""

import pytest

from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.targets.detect import probe

pytestmark = pytest.mark.stand_in


def test_the_probe_finds_them():
    """Installed, traced, with a ModelBuilder, and no device beside them."""
    found = probe()

    assert ("traced", True, False) == (found.kind, found.model_builder, found.has_device)
    assert {"torch-neuronx": "2.9.0+stand.in", "neuronx-distributed": "0.16+stand.in"} == found.versions


def test_neuron_is_the_target_that_traces(tiny_model):
    """Where that is the package that is installed."""
    decoder = compile_decoder(tiny_model("llama"), max_length=16, widths=(2,), target="neuron")

    assert ("neuron-traced", "nxd") == (decoder.target, decoder.compiler.way)
