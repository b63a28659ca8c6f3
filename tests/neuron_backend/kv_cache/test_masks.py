import pytest
import torch

from decodekit.neuron_backend import UnsupportedArchitecture
from decodekit.neuron_backend.kv_cache.masks import MaskPlan, Reach


def seen(reach: Reach, position: int, *, padding: bool = False) -> list[int]:
    """Addresses that one column attends to, of two scratch slots, the spare one and 6 positions."""
    slots = torch.arange(-3, 6)
    sees = reach.sees(torch.tensor([[position]]), torch.tensor([[padding]]), slots)
    assert tuple(sees.shape) == (1, 1, 9)
    return slots[sees[0, 0]].tolist()


class TestReach:
    """Attention reach of one layer."""

    @pytest.mark.parametrize(
        ("reach", "position", "slots"),
        [
            pytest.param(Reach(), 0, [0], id="itself"),
            pytest.param(Reach(), 3, [0, 1, 2, 3], id="everything-before"),
            pytest.param(Reach(), 5, [0, 1, 2, 3, 4, 5], id="never-a-reserved-slot"),
            pytest.param(Reach(window=2), 4, [3, 4], id="window-counts-itself"),
            pytest.param(Reach(window=4), 0, [0], id="window-at-the-start"),
            pytest.param(Reach(chunk=3), 2, [0, 1, 2], id="end-of-a-chunk"),
            pytest.param(Reach(chunk=3), 4, [3, 4], id="next-chunk"),
        ],
    )
    def test_is_what_a_token_sees(self, reach, position, slots):
        """Positions up to its own, within the layer's reach."""
        assert slots == seen(reach, position)

    @pytest.mark.parametrize("chunk", [1, 3, 1000, 8192, 12_345])
    def test_chunks_begin_where_integers_say(self, chunk):
        """In float32 as well: on both sides of every boundary up to 2**23 positions."""
        boundaries = torch.arange(0, 2**23, chunk)
        positions = torch.stack([boundaries, boundaries + chunk - 1, boundaries + chunk // 2])
        positions = positions[positions < 2**23]

        assert torch.equal(positions // chunk * chunk, Reach(chunk=chunk).earliest(positions))

    @pytest.mark.parametrize("position", [-3, 2, 9])
    def test_padding_sees_the_spare_slot_only(self, position):
        """At any position."""
        assert seen(Reach(window=2), position, padding=True) == [-1]


class TestMaskPlan:
    """The masks of a whole model."""

    @pytest.mark.parametrize(("name", "reach"), [("llama", Reach()), ("mistral", Reach(window=16))])
    def test_is_one_mask_for_layers_of_one_kind(self, name, reach, tiny_model):
        """Without layer types, a window in the config is every layer's."""
        assert list(MaskPlan.of(tiny_model(name)).reaches.values()) == [reach]

    def test_has_a_mask_for_each_kind_of_layer(self, tiny_model):
        """Models with layers of several kinds take a dictionary."""
        plan = MaskPlan.of(tiny_model("gemma2"))
        positions = torch.zeros(1, 1, dtype=torch.int64)
        masks = plan.masks(positions, positions < 0, torch.arange(-1, 2), torch.float32)

        assert plan.reaches == {"full_attention": Reach(), "sliding_attention": Reach(window=16)}
        assert plan.reaches.keys() == masks.keys()
        assert plan.span == 16

    def test_gpt_neo_has_names_of_its_own(self, tiny_model):
        """Its names for full and sliding attention."""
        plan = MaskPlan.of(tiny_model("gpt_neo"))

        assert plan.reaches == {"global": Reach(), "local": Reach(window=16)}

    def test_unknown_kinds_are_refused(self, tiny_model):
        """The error names the unsupported layer type."""
        with pytest.raises(UnsupportedArchitecture, match=r"Lfm2ForCausalLM .* 'conv'"):
            MaskPlan.of(tiny_model("lfm2"))
