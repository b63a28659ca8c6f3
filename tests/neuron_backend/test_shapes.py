import pytest

from decodekit.neuron_backend import StaticDecoder


class TestDefaults:
    """What the caller leaves open."""

    def test_max_length_is_what_the_model_knows(self, tiny_model):
        """The tiny models know 128 positions, fewer than 2048."""
        assert StaticDecoder(tiny_model("llama")).shape.max_length == 128

    @pytest.mark.parametrize(
        ("widths", "scored"),
        [((1, 5, 128), 5), ((1, 32), 32), ((40, 64), 40), ((7,), 7)],
    )
    def test_scored_width_is_the_largest_up_to_32(self, widths, scored, tiny_model):
        """Where none is that small, the smallest width is scored."""
        assert scored == StaticDecoder(tiny_model("llama"), widths=widths).shape.scored_width


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer >= 1: got 0"),
        ({"batch_size": True}, "batch_size must be an integer >= 1: got True"),
        ({"max_length": 0}, "max_length must be an integer >= 1: got 0"),
        ({"max_length": 129}, "max_length must be <= 128, the model's positions: got 129"),
        ({"widths": ()}, "widths must be ascending, each once, and at least one"),
        ({"widths": (5, 1)}, "ascending"),
        ({"widths": (1, 1)}, "each once"),
        ({"widths": (0, 1)}, "each of widths must be an integer >= 1: got 0"),
        ({"widths": (1.0,)}, "each of widths must be an integer >= 1: got 1.0"),
        ({"widths": (1, 17), "max_length": 16}, "widths must be <= max_length = 16"),
        ({"scored_width": 0}, "scored_width must be an integer >= 1: got 0"),
        ({"scored_width": 3, "widths": (1, 5)}, r"'scored_width' must be one of \(1, 5\): got 3"),
    ],
)
def test_an_impossible_shape_is_refused(options, message, tiny_model):
    """Each argument's error says its rule and the value."""
    with pytest.raises(ValueError, match=message):
        StaticDecoder(tiny_model("llama"), **options)
