"""Selection of kernels, and that a decoder's tokens do not depend on it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decodekit.neuron_backend import compile_decoder, load_decoder
from decodekit.neuron_backend.quantization.int4_linear import Int4Linear
from decodekit.neuron_backend.targets.cpu import aoti, kernel_selection
from decodekit.neuron_backend.targets.cpu.kernel_library import Library, NoLibrary
from decodekit.neuron_backend.targets.cpu.kernel_selection import measured, select_kernels, select_rows

pytestmark = pytest.mark.skipif(not aoti.has_compiler(), reason="needs a C++ compiler")


class TestSelectRows:
    """From the times of both kernels."""

    def test_each_by_itself(self):
        """The faster kernel is selected; torch's if both take as long."""
        seconds = {1: (1.0, 2.0), 2: (2.0, 1.0), 3: (1.0, 1.0), 4: (1.0, 1.5)}

        assert (1, 4) == select_rows(seconds, set())

    @pytest.mark.parametrize(("together", "rows"), [({1, 5}, (1, 5)), ({1, 5, 8}, ()), ({1, 99}, (1,))])
    def test_some_as_one(self, together, rows):
        """By the sum of their times; rows that are not timed are ignored."""
        seconds = {1: (2.0, 5.0), 5: (4.0, 3.0), 8: (9.0, 5.0)}

        assert rows == select_rows(seconds, together)


def linear_layers(dtype=torch.float32):
    """Two layers of different sizes."""
    return torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.Linear(24, 8)).to(dtype)


@pytest.fixture
def no_code(monkeypatch):
    """Kernels that are selected and never run: nothing is compiled."""
    monkeypatch.setattr(
        kernel_selection,
        "_library",
        lambda dtype, rows, tiled: Library(Path("tiled" if tiled else "by vectors"), dtype, rows, None),
    )


class TestSelectKernels:
    """What is timed, and when nothing is."""

    @pytest.mark.slow
    def test_measures_both_sides(self, tiny_model):
        """Every kind of layer, in every dtype, without changing the model."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            layers = linear_layers(dtype)
            seconds = measured(Library.compiled(dtype, (2,)), list(layers), 2)
            assert min(seconds) > 0

    def test_a_hopeless_kernel_is_given_up(self, monkeypatch):
        """Such as oneDNN's reference kernel: one product a round, and three rounds."""
        calls = []

        def product(seconds):
            calls.append(seconds)

        monkeypatch.setattr(kernel_selection, "time", SimpleNamespace(perf_counter=lambda: sum(calls)))
        monkeypatch.setattr(kernel_selection, "_by_torch", lambda layer, x: lambda: product(1.0))
        monkeypatch.setattr(Library, "float_gemm", lambda library, *operands: product(0.001))
        library = Library(Path("never run"), torch.float32, (1,), None)

        ours, theirs = measured(library, [*linear_layers()] * 4, 1)

        assert (3, 3 * 8) == (calls.count(1.0), calls.count(0.001))
        assert theirs > 10 * ours

    @pytest.mark.usefixtures("no_code")
    def test_the_faster_is_selected(self, monkeypatch):
        """Rows with equal tokens together, and wide ones never."""
        monkeypatch.setattr(
            kernel_selection, "measured", lambda library, layers, rows: (1.0, 3.0 if rows < 4 else 0.5)
        )
        found = select_kernels(linear_layers(), torch.float32, [1, 2, 5, 64], [1, 2])
        assert (1, 2) == found.rows

        found = select_kernels(linear_layers(), torch.float32, [1, 2, 5, 64], [1, 5])
        assert (1, 2, 5) == found.rows

    @pytest.mark.usefixtures("no_code")
    @pytest.mark.parametrize(("rows", "expected"), [(64, (1, 64)), (65, (1,))])
    def test_more_rows_are_timed_for_int4(self, monkeypatch, rows, expected):
        """Those of a prompt, up to MOST_ROWS_BY_4_BITS."""
        monkeypatch.setattr(kernel_selection, "measured", lambda *_: (1.0, 2.0))
        layers = torch.nn.Sequential(Int4Linear.of(torch.zeros(64, 32), None))

        assert expected == select_kernels(layers, torch.float32, [1, rows], [1]).rows

    @pytest.mark.usefixtures("no_code")
    @pytest.mark.parametrize(("at_five", "expected"), [(1.9, "tiled"), (2.1, "by vectors")])
    def test_tiles_or_vectors_by_the_total_time(self, monkeypatch, at_five, expected):
        """Slower for one row, and faster for five by more than that, or not."""
        seconds = {"by vectors": {1: 1.0, 5: 3.0}, "tiled": {1: 2.0, 5: at_five}}
        monkeypatch.setattr(kernel_selection, "tiled_dtypes", lambda: {torch.bfloat16})
        monkeypatch.setattr(
            kernel_selection,
            "measured",
            lambda library, layers, rows: (seconds[library.folder.name][rows], 9.0),
        )

        found = select_kernels(linear_layers(torch.bfloat16), torch.bfloat16, [1, 5, 64], [1, 5])

        assert (expected, (1, 5)) == (found.folder.name, found.rows)

    @pytest.mark.parametrize(
        ("model", "dtype", "rows"),
        [
            (linear_layers(), torch.float32, [64, 128]),
            (linear_layers(), torch.bfloat16, [1]),
            (linear_layers(torch.float64), torch.float64, [1]),
            (torch.nn.Embedding(4, 4), torch.float32, [1]),
        ],
        ids=["wide", "another dtype", "double", "no product"],
    )
    def test_nothing_to_measure(self, monkeypatch, model, dtype, rows):
        """Nothing is compiled."""
        monkeypatch.setattr(Library, "compiled", None)

        assert isinstance(select_kernels(model, dtype, rows, rows), NoLibrary)

    @pytest.mark.usefixtures("no_code")
    def test_never_faster(self, monkeypatch):
        """Then a decoder uses torch's kernels only."""
        monkeypatch.setattr(kernel_selection, "measured", lambda *_: (2.0, 1.0))

        assert isinstance(select_kernels(linear_layers(), torch.float32, [1], [1]), NoLibrary)


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
def test_columns_do_not_depend_on_the_width(tiny_model, monkeypatch, tmp_path, weights, dtype):
    """A verification's logits are bit-identical to decoding's, near the stock model's, also after loading."""
    monkeypatch.setattr(kernel_selection, "measured", lambda *_: (1.0, 2.0))
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
def test_columns_of_a_deep_model_do_not_depend_on_the_width(monkeypatch, dtype):
    """Sums over many layers round equally, wherever the compiler ends a loop."""
    monkeypatch.setattr(kernel_selection, "measured", lambda *_: (1.0, 2.0))
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
