import copy

import pytest
import torch

from decodekit.neuron_backend import StaticDecoder, UnsupportedArchitecture
from decodekit.neuron_backend.kv_cache.masks import MaskPlan, Reach
from decodekit.neuron_backend.models import adaptation
from decodekit.neuron_backend.parity.logits_probe import _cover


class TestRefusal:
    """What the probe detects."""

    def test_of_recurrent_state(self, tiny_model):
        """Mamba has recurrent state, which is not position-addressed."""
        with pytest.raises(UnsupportedArchitecture, match=r"MambaForCausalLM .* cannot be rewound"):
            StaticDecoder(tiny_model("mamba"))

    def test_of_a_model_with_some_such_layers(self, tiny_model):
        """One convolutional layer among the others is enough."""
        with pytest.raises(UnsupportedArchitecture, match=r"Lfm2ForCausalLM .* 'conv' .* cannot be rewound"):
            StaticDecoder(tiny_model("lfm2"), max_length=32, widths=(1, 4))

    @pytest.mark.parametrize(("name", "architecture"), [("bloom", "Bloom"), ("falcon_alibi", "Falcon")])
    def test_of_a_bias_by_distance(self, name, architecture, tiny_model, monkeypatch):
        """Without adaptation, ALiBi models fail; the error names them, with the cause chained."""
        monkeypatch.setattr(adaptation, "_ADAPTERS", {})

        with pytest.raises(UnsupportedArchitecture, match=f"{architecture}ForCausalLM") as caught:
            StaticDecoder(tiny_model(name), max_length=32, widths=(1, 4))

        assert isinstance(caught.value, ValueError)
        assert caught.value.__cause__ is not None

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
    @pytest.mark.parametrize("window", [15, 17])
    def test_of_a_window_that_is_one_off(self, window, dtype, tiny_model, monkeypatch):
        """The probe is longer than the window of 16, so an off-by-one is detected, in bfloat16 too."""
        wrong = MaskPlan({"sliding_attention": Reach(window=window)})
        monkeypatch.setattr(MaskPlan, "of", classmethod(lambda cls, model: wrong))

        with pytest.raises(UnsupportedArchitecture, match=r"MistralForCausalLM .* differs"):
            StaticDecoder(tiny_model("mistral"), max_length=32, widths=(1, 4), dtype=dtype)

    def test_of_positions_of_its_own(self, tiny_model, monkeypatch):
        """A model that ignores position_ids is refused."""
        model = copy.deepcopy(tiny_model("gpt2"))
        table = model.transformer.wpe
        original = table.forward
        monkeypatch.setattr(type(table), "forward", lambda self, ids: original(self_positions(ids)))

        def self_positions(ids: torch.Tensor) -> torch.Tensor:
            return torch.arange(ids.shape[1])[None]

        with pytest.raises(UnsupportedArchitecture, match=r"GPT2LMHeadModel .* differs"):
            StaticDecoder(model, max_length=32, widths=(1, 4))

    def test_of_logits_that_are_not_numbers(self, tiny_model):
        """NaN equals nothing, not even the stock model's NaN."""
        model = copy.deepcopy(tiny_model("llama"))
        torch.nn.init.constant_(model.model.norm.weight, float("nan"))

        with pytest.raises(UnsupportedArchitecture, match="differs"):
            StaticDecoder(model, max_length=32, widths=(1, 4))


class TestProbe:
    """The probe's rows and chunks."""

    @pytest.mark.parametrize(
        ("widths", "max_length"),
        [((1,), 1), ((1, 2), 2), ((2,), 3), ((1,), 33), ((3, 7), 7), ((3, 7), 33), ((2,), 33)],
    )
    @pytest.mark.parametrize("batch_size", [1, 5])
    def test_fits_any_shape(self, batch_size, widths, max_length, tiny_model):
        """Short caches, widths without 1 and many rows can all be compared."""
        StaticDecoder(tiny_model("mistral"), batch_size=batch_size, max_length=max_length, widths=widths)

    def test_runs_every_width(self, llama):
        """A program that is wrong at one width is detected."""
        right = llama.programs[5]
        llama.programs[5] = lambda *inputs: right(*inputs) + 1

        with pytest.raises(UnsupportedArchitecture, match=r"the fifth differs .* at width 5"):
            llama.probe().check(llama.forward, "the fifth")

    def test_rewinds(self, llama):
        """A decoder whose slots cannot be overwritten is detected."""
        taken: set[int] = set()

        def keeping(ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
            kept = [address + llama.cache.reserved for address in taken]
            before = [buffer[0].clone() for buffer in llama.cache.tensors]
            logits = llama.forward(ids, cache_pos)
            for buffer, old in zip(llama.cache.tensors, before, strict=True):
                buffer[0, :, kept] = old[:, kept]
            taken.update((cache_pos[0] + torch.arange(ids.shape[1]))[ids[0] >= 0].tolist())
            return logits

        with pytest.raises(UnsupportedArchitecture, match="the keeper differs"):
            llama.probe().check(keeping, "the keeper")


@pytest.mark.parametrize(
    ("length", "widths", "chunks"),
    [(7, (1, 5), [5, 1, 1]), (7, (5,), [5, 5]), (3, (2, 8), [2, 2]), (16, (8,), [8, 8])],
)
def test_a_cover_has_the_length_of_the_rows(length, widths, chunks):
    """A remainder is padded."""
    assert chunks == _cover(length, widths)
