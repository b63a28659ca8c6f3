"""The stand-ins are detected like the real packages."""

import pytest

from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.targets.neuron.detect import probe
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget

pytestmark = pytest.mark.stand_in


def test_the_probe_finds_them():
    """Installed, of kind "traced", with a ModelBuilder, without a device."""
    found = probe()

    assert ("traced", True, False) == (found.kind, found.model_builder, found.has_device)
    assert {"torch-neuronx": "2.9.0+stand.in", "neuronx-distributed": "0.16+stand.in"} == found.versions


def test_neuron_is_the_target_that_traces(tiny_model):
    """If that package is installed."""
    decoder = compile_decoder(tiny_model("llama"), max_length=16, widths=(2,), target="neuron")

    assert ("neuron-traced", "nxd") == (decoder.target, decoder.compiler.way)


@pytest.mark.parametrize(
    ("way", "expected"),
    [("nxd", (1, 5, 128, 256, 512, 600)), ("trace", (1, 5, 64)), ("auto", (1, 5, 128, 256, 512, 600))],
)
def test_default_widths_depend_on_the_way(way, expected):
    """With one program, every forward costs as much as the widest."""
    assert expected == TracedTarget(way=way).default_widths(600)


def test_one_program_is_no_wider_than_a_row(tiny_model):
    """Nor, by default, as wide as a long row."""
    decoder = compile_decoder(tiny_model("llama"), max_length=100, target=TracedTarget(way="trace"))

    assert ((1, 5, 64), 5) == (decoder.shape.widths, decoder.shape.scored_width)
    assert (1, 5, 40) == TracedTarget(way="trace").default_widths(40)
