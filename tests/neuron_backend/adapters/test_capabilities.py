import pytest

from decodekit.neuron_backend.adapters.capabilities import Capabilities, Prefill, Window


def capabilities(*windows: Window, prefill: Prefill | None = None, **options: bool) -> Capabilities:
    return Capabilities(2, 32, 61, windows, prefill, **options)


class TestShape:
    """The decoder shape that follows from the capabilities."""

    def test_the_widest_scoring_window_is_the_scored_width(self):
        """Wider forwards, of prompts, score their last column."""
        shape = capabilities(Window(5), Window(1), prefill=Prefill(16, one_row=True)).shape

        assert ((1, 5, 16), 5) == (shape.widths, shape.scored_width)
        assert (2, 32, 61) == (shape.batch_size, shape.max_length, shape.vocab_size)

    def test_a_prefill_no_wider_than_a_verification_adds_no_width(self):
        """Forwards up to the scored width score every column, which a prefill does not."""
        shape = capabilities(Window(1), Window(5), prefill=Prefill(4, one_row=True)).shape

        assert ((1, 5), 5) == (shape.widths, shape.scored_width)

    def test_one_token_is_a_width_of_any_system(self):
        """A decoder scores single tokens, through a wider window where there is no narrower one."""
        shape = capabilities(Window(5, first=1), prefill=Prefill(16, one_row=True)).shape

        assert ((1, 5, 16), 5) == (shape.widths, shape.scored_width)

    def test_a_window_that_scores_nothing_is_a_width_for_prompts(self):
        """A prompt of any length is one forward, whose last column takes another call."""
        shape = capabilities(Window(1), Window(8, scores="none")).shape

        assert ((1, 8, 32), 1) == (shape.widths, shape.scored_width)


class TestLimits:
    """Declared limits."""

    def test_full_capabilities_have_no_limits(self):
        """Verification, positions per row, prompts that leave other rows unchanged."""
        assert () == capabilities(Window(1), Window(5), prefill=Prefill(16, one_row=True)).limits

    @pytest.mark.parametrize(
        ("limited", "sentence"),
        [
            (capabilities(Window(1), prefill=Prefill(8, one_row=True)), "no speculation"),
            (capabilities(Window(1), Window(4), per_row_positions=False), "one position at a time"),
            (capabilities(Window(1), Window(4), prefill=Prefill(8, one_row=False)), "encodes the other rows"),
            (capabilities(Window(1)), "token by token"),
            (capabilities(Window(4)), "no program of one column: a single token takes a call of 4 columns"),
        ],
    )
    def test_each_is_named(self, limited, sentence):
        """Each limit has its sentence."""
        assert any(sentence in limit for limit in limited.limits)


class TestRefusals:
    """Capabilities on which no forward can be built."""

    @pytest.mark.parametrize(
        ("windows", "prefill", "message"),
        [
            ((), None, "'windows' must begin with one that scores every column"),
            ((Window(1, scores="last"),), None, "'windows' must begin with one that scores every column"),
            ((Window(4, scores="none"), Window(5)), None, "'windows' must begin with one that scores every"),
            ((Window(1), Window(32, first=1)), None, "'windows' must fit into 32 positions, from position 1"),
            ((Window(1, first=1),), None, "'prefill' must take the token at position 0"),
            ((Window(4, first=1),), None, "'prefill' must take the token at position 0"),
            ((Window(1, first=1),), Prefill(8, one_row=True, least=2), "'prefill' must take the token"),
            ((Window(1),), Prefill(33, one_row=True), "'prefill' must have <= 32 columns"),
        ],
    )
    def test_are_raised_on_construction(self, windows, prefill, message):
        """With the setting and the value."""
        with pytest.raises(ValueError, match=message):
            capabilities(*windows, prefill=prefill)

    def test_sizes_are_positive(self):
        """Rows, positions, vocabulary."""
        with pytest.raises(ValueError, match="'batch_size' must be >= 1: got 0"):
            Capabilities(0, 32, 61, (Window(1),))
