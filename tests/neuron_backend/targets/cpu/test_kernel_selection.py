"""Selection of kernels, and that a decoder's tokens do not depend on it."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decodekit.neuron_backend import compile_decoder, load_decoder
from decodekit.neuron_backend.targets.cpu import kernel_selection
from decodekit.neuron_backend.targets.cpu.kernel_library import Library, NoLibrary
from decodekit.neuron_backend.targets.cpu.kernel_selection import seconds, select_kernels

from ....toolchain_mark import needs_toolchain

pytestmark = needs_toolchain


def linear_layers(dtype=torch.float32):
    """Two layers of different sizes."""
    return torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.Linear(24, 8)).to(dtype)


@pytest.fixture
def no_code(monkeypatch):
    """Kernels that are selected and never run: nothing is compiled."""
    monkeypatch.setattr(
        kernel_selection,
        "library",
        lambda dtype, tiled: Library(Path("tiled" if tiled else "by vectors"), dtype, None),
    )


class TestSelectKernels:
    """What is timed, and when nothing is."""

    @pytest.mark.slow
    def test_times_products(self):
        """In every dtype, without changing the weights."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            weights = [layer.weight.detach() for layer in linear_layers(dtype)]
            before = [weight.clone() for weight in weights]

            assert seconds(Library.compiled(dtype), weights, 2) > 0
            assert all(map(torch.equal, before, weights))

    @pytest.mark.usefixtures("no_code")
    @pytest.mark.parametrize(("at_five", "expected"), [(1.9, "tiled"), (2.1, "by vectors")])
    def test_tiles_or_vectors_by_the_total_time(self, monkeypatch, at_five, expected):
        """Slower for one row, and faster for five by more than that, or not."""
        times = {"by vectors": {1: 1.0, 5: 3.0}, "tiled": {1: 2.0, 5: at_five}}
        monkeypatch.setattr(kernel_selection, "tiled_dtypes", lambda: {torch.bfloat16})
        monkeypatch.setattr(
            kernel_selection, "seconds", lambda kernels, weights, rows: times[kernels.object_file.name][rows]
        )

        found = select_kernels(linear_layers(torch.bfloat16), torch.bfloat16, [1, 5, 1])

        assert expected == found.object_file.name

    @pytest.mark.usefixtures("no_code")
    @pytest.mark.parametrize(
        ("model", "dtype"),
        [(linear_layers(), torch.float32), (torch.nn.Embedding(4, 4).bfloat16(), torch.bfloat16)],
        ids=["no choice", "no product"],
    )
    def test_nothing_to_time(self, monkeypatch, model, dtype):
        """Of one kind only, or without weights."""
        monkeypatch.setattr(kernel_selection, "tiled_dtypes", lambda: {torch.bfloat16})
        monkeypatch.setattr(kernel_selection, "seconds", None)

        assert "by vectors" == select_kernels(model, dtype, [1]).object_file.name

    def test_no_kernels_for_double_precision(self, monkeypatch):
        """Nothing is compiled."""
        monkeypatch.setattr(Library, "compiled", None)

        assert isinstance(select_kernels(linear_layers(torch.float64), torch.float64, [1]), NoLibrary)


def logits(decoder, widths):
    """Logits of forwards of *widths* on random tokens, without the first forward's."""
    ids = torch.randint(0, 60, (1, 25), generator=torch.Generator().manual_seed(5))
    found, start = [], 0
    for width in widths:
        columns = ids[:, start : start + width]
        found.append(decoder.forward(columns, torch.tensor([start])).clone())
        start += width
    return torch.cat(found[1:], dim=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        (None, torch.float32),
        ("int8", torch.bfloat16),
        (None, torch.bfloat16),
        ("int4", torch.float32),
    ],
    ids=str,
)
def test_columns_do_not_depend_on_the_width(tiny_model, tmp_path, weights, dtype):
    """A verification's logits are bit-identical to decoding's, near the stock model's, also after loading."""
    model = tiny_model("llama")
    shapes = {"max_length": 32, "widths": (1, 5, 20), "weights": weights, "dtype": dtype}
    compiled = compile_decoder(model, target="cpu", **shapes)
    eager = compile_decoder(model, target="eager", **shapes)
    compiled.save(tmp_path / "saved")
    loaded = load_decoder(tmp_path / "saved")

    together, alone = logits(compiled, (20, 5)), logits(compiled, (20, 1, 1, 1, 1, 1))
    assert torch.equal(alone, together)
    assert torch.equal(together, logits(loaded, (20, 5)))
    if dtype == torch.float32:
        # bfloat16 is compared on compilation.
        torch.testing.assert_close(together, logits(eager, (20, 5)), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_columns_of_a_deep_model_do_not_depend_on_the_width(dtype):
    """Sums over many layers round equally, wherever the compiler ends a loop."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=9,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval().to(dtype)
    decoder = compile_decoder(model, target="cpu", max_length=32, widths=(1, 5, 20))

    assert torch.equal(logits(decoder, (20, 1, 1, 1, 1, 1)), logits(decoder, (20, 5)))
