"""Which code multiplies, and that a decoder's tokens do not depend on it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decodekit.neuron_backend import compile_decoder, load_decoder
from decodekit.neuron_backend.few_rows.library import Library, NoLibrary
from decodekit.neuron_backend.quantization.int4_linear import Int4Linear
from decodekit.neuron_backend.targets import aoti, quickest_products
from decodekit.neuron_backend.targets.quickest_products import chosen_rows, measured, quickest

pytestmark = pytest.mark.skipif(not aoti.has_compiler(), reason="needs a C++ compiler")


class TestChosenRows:
    """From seconds of both sides."""

    def test_each_by_itself(self):
        """The quicker side has it; where both take as long, torch."""
        seconds = {1: (1.0, 2.0), 2: (2.0, 1.0), 3: (1.0, 1.0), 4: (1.0, 1.5)}

        assert (1, 4) == chosen_rows(seconds, set())

    @pytest.mark.parametrize(("together", "rows"), [({1, 5}, (1, 5)), ({1, 5, 8}, ()), ({1, 99}, (1,))])
    def test_some_as_one(self, together, rows):
        """By their sum; rows that are not measured count for nothing."""
        seconds = {1: (2.0, 5.0), 5: (4.0, 3.0), 8: (9.0, 5.0)}

        assert rows == chosen_rows(seconds, together)


def linear_layers(dtype=torch.float32):
    """Two, of different sizes."""
    return torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.Linear(24, 8)).to(dtype)


@pytest.fixture
def no_code(monkeypatch):
    """Code that is chosen and never run: nothing is compiled for it."""
    monkeypatch.setattr(
        quickest_products,
        "_library",
        lambda dtype, rows, tiled: Library(Path("tiled" if tiled else "by vectors"), dtype, rows, None),
    )


class TestQuickest:
    """What is measured, and when nothing is."""

    def test_measures_both_sides(self, tiny_model):
        """Every kind of layer, in every dtype, without leaving a trace in the model."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            layers = linear_layers(dtype)
            seconds = measured(Library.compiled(dtype, (2,)), list(layers), 2)
            assert min(seconds) > 0

    def test_a_kernel_out_of_reach_is_given_up(self, monkeypatch):
        """Such as oneDNN's reference kernel: one product of each round, and few rounds."""
        calls = []

        def product(seconds):
            calls.append(seconds)

        monkeypatch.setattr(quickest_products, "time", SimpleNamespace(perf_counter=lambda: sum(calls)))
        monkeypatch.setattr(quickest_products, "_by_torch", lambda layer, x: lambda: product(1.0))
        code = SimpleNamespace(dtype=torch.float32, float_rows=lambda *operands: product(0.001))

        mine, theirs = measured(code, [*linear_layers()] * 4, 1)

        assert (3, 3 * 8) == (calls.count(1.0), calls.count(0.001))
        assert theirs > 10 * mine

    @pytest.mark.usefixtures("no_code")
    def test_the_quicker_is_taken(self, monkeypatch):
        """Rows of the same tokens together, and wide ones never."""
        monkeypatch.setattr(
            quickest_products, "measured", lambda library, layers, rows: (1.0, 3.0 if rows < 4 else 0.5)
        )
        found = quickest(linear_layers(), torch.float32, [1, 2, 5, 64], [1, 2])
        assert (1, 2) == found.rows

        found = quickest(linear_layers(), torch.float32, [1, 2, 5, 64], [1, 5])
        assert (1, 2, 5) == found.rows

    @pytest.mark.usefixtures("no_code")
    @pytest.mark.parametrize(("rows", "expected"), [(64, (1, 64)), (65, (1,))])
    def test_more_rows_are_tried_by_4_bits(self, monkeypatch, rows, expected):
        """A prompt's, up to some width."""
        monkeypatch.setattr(quickest_products, "measured", lambda *_: (1.0, 2.0))
        layers = torch.nn.Sequential(Int4Linear.of(torch.zeros(64, 32), None))

        assert expected == quickest(layers, torch.float32, [1, rows], [1]).rows

    @pytest.mark.usefixtures("no_code")
    @pytest.mark.parametrize(("at_five", "expected"), [(1.9, "tiled"), (2.1, "by vectors")])
    def test_of_two_kinds_the_one_that_takes_less_for_all_rows(self, monkeypatch, at_five, expected):
        """Slower for one row, and quicker for five by more than that, or not."""
        seconds = {"by vectors": {1: 1.0, 5: 3.0}, "tiled": {1: 2.0, 5: at_five}}
        monkeypatch.setattr(quickest_products, "tiled_dtypes", lambda: {torch.bfloat16})
        monkeypatch.setattr(
            quickest_products,
            "measured",
            lambda library, layers, rows: (seconds[library.folder.name][rows], 9.0),
        )

        found = quickest(linear_layers(torch.bfloat16), torch.bfloat16, [1, 5, 64], [1, 5])

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
        """Nothing is compiled then."""
        monkeypatch.setattr(Library, "compiled", None)

        assert isinstance(quickest(model, dtype, rows, rows), NoLibrary)

    @pytest.mark.usefixtures("no_code")
    def test_never_quicker(self, monkeypatch):
        """Then a decoder goes without."""
        monkeypatch.setattr(quickest_products, "measured", lambda *_: (2.0, 1.0))

        assert isinstance(quickest(linear_layers(), torch.float32, [1], [1]), NoLibrary)


def logits(decoder, widths):
    """Of forwards of *widths* over random tokens, after the first."""
    ids = torch.randint(0, 60, (1, 25), generator=torch.Generator().manual_seed(5))
    found, start = [], 0
    for width in widths:
        columns = ids[:, start : start + width]
        found.append(decoder.forward(columns, torch.tensor([start])).clone())
        start += width
    return torch.cat(found[1:], dim=1)


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_columns_are_what_they_are_alone(tiny_model, monkeypatch, tmp_path, weights, dtype):
    """A verification's logits are decoding's, to the last bit; near the stock model's; saved and loaded."""
    monkeypatch.setattr(quickest_products, "measured", lambda *_: (1.0, 2.0))
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
        # bfloat16 is compared when it is compiled.
        torch.testing.assert_close(together, logits(eager, (20, 5)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_columns_of_a_deep_model_are_what_they_are_alone(monkeypatch, dtype):
    """Sums over many layers round alike, wherever the compiler ends a loop."""
    monkeypatch.setattr(quickest_products, "measured", lambda *_: (1.0, 2.0))
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
