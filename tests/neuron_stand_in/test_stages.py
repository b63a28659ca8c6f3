"""Progress of tracing for Neuron."""

from collections.abc import Callable

import pytest
from transformers import PreTrainedModel

from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.progress import Stage
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget

pytestmark = pytest.mark.stand_in


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (
            "nxd",
            [
                "tracing width_1_span_16",
                "compiling width_1_span_16",
                "putting the weights on the device",
                "running programs over 16 positions",
            ],
        ),
        (
            "trace",
            [
                "tracing and compiling width_1_span_16",
                "putting the weights on the device",
                "running programs over 16 positions",
            ],
        ),
    ],
)
def test_each_stage_is_told(
    way: str, expected: list[str], tiny_model: Callable[..., PreTrainedModel]
) -> None:
    """From the first trace to the first forward."""
    told: list[Stage] = []
    compile_decoder(
        tiny_model("llama"),
        max_length=16,
        widths=(1,),
        target=TracedTarget(way=way, keep_programs=False),
        progress=told.append,
    )

    names = [one.name for one in told if one.seconds is not None]
    linted = names.index("linting the graphs")
    assert expected == names[linted + 1 : -1]
    assert "comparing the program traced for Neuron with the stock model" == names[-1]
