import pytest
import transformers

from decodekit.neuron_backend import NativeTarget, StaticDecoder, compile_decoder
from decodekit.neuron_backend.kv_cache.shapes import decoder_shape, neuron_widths


class TestNeuronWidths:
    """Default widths on a device."""

    @pytest.mark.parametrize(
        ("max_length", "expected"),
        [(2048, (1, 5, 128, 256, 512, 1024, 2048)), (200, (1, 5, 128, 200)), (128, (1, 5, 128)), (3, (1, 3))],
    )
    def test_are_powers_of_two_up_to_the_length(self, max_length, expected):
        """In addition to 1, and 5 for four draft tokens."""
        assert expected == neuron_widths(max_length)

    @pytest.mark.parametrize(("max_length", "widths"), [(None, (1, 5, 128)), (100, (1, 5, 100))])
    def test_are_used_for_a_device_only(self, max_length, widths, tiny_model, monkeypatch):
        """Depending on the target; the model has 128 positions."""
        monkeypatch.setattr(NativeTarget, "require", lambda self: None)
        monkeypatch.setattr(NativeTarget, "compile", lambda self, decoder: None)
        model = tiny_model("llama")

        assert widths == compile_decoder(model, max_length=max_length, target=NativeTarget()).shape.widths
        assert (1, 5, 128) == compile_decoder(model, target="eager").shape.widths

    def test_are_within_the_budget_of_a_scatter(self, tiny_model, monkeypatch):
        """Two heads of eight numbers in two rows: 32 for each column. Widths that are given are kept."""
        monkeypatch.setattr(NativeTarget, "require", lambda self: None)
        monkeypatch.setattr(NativeTarget, "compile", lambda self, decoder: None)
        monkeypatch.setattr(NativeTarget, "largest_write", 32 * 100)
        model = tiny_model("llama")

        def widths(**shape):
            return compile_decoder(model, batch_size=2, target=NativeTarget(), **shape).shape.widths

        assert (1, 5) == widths()
        assert (1, 5, 100) == widths(max_length=100)
        assert (1, 128) == widths(widths=(1, 128))
        monkeypatch.setattr(NativeTarget, "largest_write", 16)
        assert (1,) == widths()

    def test_a_length_that_is_none_is_refused_as_ever(self, tiny_model, monkeypatch):
        """By its own rule."""
        monkeypatch.setattr(NativeTarget, "require", lambda self: None)
        with pytest.raises(ValueError, match="'max_length' must be an integer >= 1: got 'long'"):
            compile_decoder(tiny_model("llama"), max_length="long", target=NativeTarget())


class TestDefaults:
    """Defaults."""

    def test_max_length_is_what_the_model_knows(self, tiny_model):
        """The tiny models have 128 positions, fewer than 2048."""
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
        ({"batch_size": 0}, "'batch_size' must be an integer >= 1: got 0"),
        ({"batch_size": True}, "'batch_size' must be an integer >= 1: got True"),
        ({"max_length": 0}, "'max_length' must be an integer >= 1: got 0"),
        ({"max_length": 129}, "'max_length' must be <= 128, the model's positions: got 129"),
        ({"widths": ()}, "'widths' must be ascending, each once, and at least one"),
        ({"widths": (5, 1)}, "ascending"),
        ({"widths": (1, 1)}, "each once"),
        ({"widths": (0, 1)}, "each of 'widths' must be an integer >= 1: got 0"),
        ({"widths": (1.0,)}, "each of 'widths' must be an integer >= 1: got 1.0"),
        ({"widths": (1, 17), "max_length": 16}, "'widths' must be <= max_length = 16"),
        ({"scored_width": 0}, "'scored_width' must be an integer >= 1: got 0"),
        ({"scored_width": 3, "widths": (1, 5)}, r"'scored_width' must be one of \(1, 5\): got 3"),
    ],
)
def test_an_impossible_shape_is_refused(options, message, tiny_model):
    """Each argument's error gives its rule and the value."""
    with pytest.raises(ValueError, match=message):
        StaticDecoder(tiny_model("llama"), **options)


def test_learned_positions_of_speech_decoders_limit_the_length():
    """Under Whisper's name for them."""
    config = transformers.WhisperConfig(max_target_positions=448)

    assert 448 == decoder_shape(config, vocab_size=61).max_length
    with pytest.raises(ValueError, match=r"'max_length' must be <= 448, the model's positions: got 512"):
        decoder_shape(config, vocab_size=61, max_length=512)
