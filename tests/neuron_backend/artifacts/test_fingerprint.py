"""What a saved program relies on."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.neuron_backend import StaticDecoder
from decodekit.neuron_backend.artifacts.fingerprint import ModelFingerprint
from decodekit.neuron_backend.targets.cpu import cpu_target
from decodekit.neuron_backend.targets.neuron import traced_target


@pytest.mark.parametrize(
    ("is_host", "made"),
    [
        (
            True,
            lambda decoder: cpu_target._fingerprint(decoder, ModelFingerprint.of(decoder.step), "width", 1),
        ),
        (False, traced_target._fingerprint),
    ],
    ids=["cpu", "neuron"],
)
def test_the_processor_counts_for_its_own_programs_alone(
    is_host: bool,
    made: Callable[[StaticDecoder], str],
    tiny_model: Callable[..., PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program for a device may be traced on one host and run on another."""
    decoder = StaticDecoder(tiny_model("llama"), max_length=16, widths=(1,))
    found = set()
    for capability in ("AVX2", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda found=capability: found)
        found.add(made(decoder))

    assert (2 if is_host else 1) == len(found)
