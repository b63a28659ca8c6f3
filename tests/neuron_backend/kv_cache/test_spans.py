"""Spans: a forward attends to as many leading positions as its tokens need."""

import itertools

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Generator, Sample, Slots
from decodekit.neuron_backend import StaticDecoder, compile_decoder
from decodekit.neuron_backend.kv_cache.spans import decoder_spans, end_position, powers_of_two, smallest_span
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import check_decoder

from ...histories import history_of_rows

SPANS = (8, 16, 40)


@pytest.fixture(params=["llama", "mistral", "gemma2", "gpt2"])
def pair(request, tiny_model):
    """The same model over three spans, and over the whole cache in every forward."""
    model = tiny_model(request.param, torch.float64)
    options = {"batch_size": 2, "max_length": 40, "widths": (1, 5), "tree_widths": (4,)}
    return StaticDecoder(model, spans=SPANS, **options), StaticDecoder(model, spans=(40,), **options)


class TestSpans:
    """Default and validated spans, and the selection of one."""

    @given(first=st.integers(1, 300), last=st.integers(1, 5000))
    def test_double_up_to_the_last(self, first, last):
        """Ascending, at most twice the one before, and the last itself."""
        sizes = powers_of_two(first, last)

        assert last == sizes[-1]
        assert sorted(set(sizes)) == list(sizes)
        assert all(one < other <= 2 * one for one, other in itertools.pairwise(sizes))

    def test_are_powers_of_two_by_default(self, tiny_model):
        """From 128 up to the decoder's length; one alone where that is short."""
        assert (128, 256, 300) == decoder_spans(None, 300)
        assert (64,) == StaticDecoder(tiny_model("llama"), max_length=64, widths=(1,)).spans

    @pytest.mark.parametrize(
        "spans", [(), (8,), (16, 8, 40), (8, 8, 40), (0, 40), (True, 40), (8, 48), (8.0, 40)]
    )
    def test_that_are_none_are_refused(self, spans):
        """Ascending integers, the last of them the whole length."""
        with pytest.raises(ValueError, match="'spans' must be ascending and end with max_length = 40: got"):
            decoder_spans(spans, 40)

    @given(st.data())
    def test_the_smallest_that_fits_is_taken(self, data):
        """By brute force over the positions of the tokens."""
        tokens = data.draw(
            st.lists(st.lists(st.sampled_from([-1, 3]), min_size=4, max_size=4), min_size=1, max_size=3)
        )
        starts = data.draw(st.lists(st.integers(-4, 36), min_size=len(tokens), max_size=len(tokens)))
        positions = [
            start + column
            for start, row in zip(starts, tokens, strict=True)
            for column, token in enumerate(row)
            if token >= 0 and start + column >= 0
        ]
        end = end_position(torch.tensor(tokens), torch.tensor(starts))

        assert max(positions, default=-1) + 1 == max(end, 0)
        assert min(span for span in SPANS if all(p < span for p in positions)) == smallest_span(
            SPANS, end, None
        )

    @pytest.mark.parametrize(("span", "end"), [(8, 9), (12, 3), (41, 1)])
    def test_one_that_does_not_hold_the_tokens_is_refused(self, span, end):
        """Nor is one that nothing was compiled for."""
        with pytest.raises(
            ValueError, match=rf"'span' must be one of \(8, 16, 40\) and hold {end} positions: got"
        ):
            smallest_span(SPANS, end, span)

    @pytest.mark.parametrize("span", [None, 40])
    def test_a_position_beyond_the_longest(self, span):
        """Whether or not a span is asked for."""
        with pytest.raises(ValueError, match="positions below 40: got position 40"):
            smallest_span(SPANS, 41, span)


class TestDecoder:
    """Logits over different spans."""

    def test_keeps_the_contract(self, pair):
        """Ragged rows, rewinds and trees, across every border."""
        check_decoder(pair[0])

    def test_gives_what_the_whole_cache_gives(self, pair):
        """Token by token over all borders, each row at its own place, then back to the shortest."""
        texts = torch.randint(0, 60, (2, 40), generator=torch.Generator().manual_seed(3))
        for decoder in pair:
            decoder.forward(texts[:, :5], torch.tensor([0, 0]))
        for step in [*range(5, 40), 3, 20, 7]:
            ids, start = texts[:, step : step + 1].clone(), torch.tensor([step, max(step - 3, 0)])
            short, whole = (decoder.forward(ids, start) for decoder in pair)

            torch.testing.assert_close(short, whole, atol=2e-6, rtol=2e-6)

    def test_reads_nothing_behind_the_span(self, pair):
        """NaN beyond the span has no effect, as it would through a mask."""
        decoder, _ = pair
        expected = decoder.forward(torch.tensor([[1], [2]]), torch.tensor([0, 0])).clone()
        for buffer in decoder.cache.tensors:
            buffer[:, :, decoder.cache.reserved + 8 :] = torch.nan

        assert torch.equal(expected, decoder.forward(torch.tensor([[1], [2]]), torch.tensor([0, 0])))

    def test_a_longer_one_can_be_given(self, pair):
        """The same within rounding; one that is too short is refused before anything is written."""
        decoder, _ = pair
        ids, start = torch.tensor([[1], [2]]), torch.tensor([0, 9])
        expected = decoder.forward(ids, start).clone()

        torch.testing.assert_close(expected, decoder.forward(ids, start, span=40), atol=2e-6, rtol=2e-6)
        before = [buffer.clone() for buffer in decoder.cache.tensors]
        with pytest.raises(ValueError, match="hold 10 positions: got 8"):
            decoder.forward(ids + 1, start, span=8)
        assert all(map(torch.equal, before, decoder.cache.tensors))

    def test_speculates_across_the_borders(self, tiny_model):
        """The tokens of plain decoding, which reaches the boundaries in other steps."""
        options = {"batch_size": 2, "max_length": 40, "widths": (1, 5), "spans": SPANS}
        model = tiny_model("llama", torch.float64)
        prompts = [[1, 2, 3, 1, 2, 3, 1], [4, 5, 4, 5]]
        plain = Generator(StaticDecoder(model, **options), sampler=Sample(seed=2))(prompts)
        fast = SpeculativeGenerator(StaticDecoder(model, **options), PromptLookup(), sampler=Sample(seed=2))(
            prompts
        )

        assert plain.ids == fast.ids
        assert 40 < max(len(prompt) + len(ids) for prompt, ids in zip(prompts, plain.ids, strict=True)) + 1


class TestExactWidth:
    """Bit-exact results require one program, hence one span."""

    def test_every_forward_attends_to_the_whole_cache(self, tiny_model):
        """Whatever it is fed; and without it the smallest span is left to the decoder."""
        decoder = StaticDecoder(tiny_model("llama"), max_length=40, widths=(1, 5), spans=SPANS)
        requested = []
        original = decoder.forward

        def recording(ids, cache_pos, span=None):
            requested.append((ids.shape[1], span))
            return original(ids, cache_pos, span)

        decoder.forward = recording
        slots = Slots(decoder)
        history, one = history_of_rows([list(range(40))]), torch.tensor([1])
        slots.feed(history, torch.tensor([7]), one)
        slots.feed(history, torch.tensor([8]), one, exact_width=True)

        # The first seven were fed through other programs and are fed again.
        assert [(5, None), (5, None), (5, 40), (5, 40)] == requested
        slots.feed(history, torch.tensor([9]), one, exact_width=True)
        assert [(5, 40)] == requested[4:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama"])
def test_one_compiled_program_serves_every_span(name, tiny_model):
    """CPU programs have a dynamic span; the logits are the eager decoder's on both sides of a boundary."""
    options = {"batch_size": 2, "max_length": 40, "widths": (2,), "spans": SPANS}
    compiled = compile_decoder(tiny_model(name), target="cpu", **options)
    eager = StaticDecoder(tiny_model(name), **options)
    texts = torch.randint(0, 60, (2, 40), generator=torch.Generator().manual_seed(3))
    for step in range(0, 40, 2):
        ids, start = texts[:, step : step + 2], torch.tensor([step, max(step - 5, 0)])
        torch.testing.assert_close(
            eager.forward(ids, start).clone(), compiled.forward(ids, start), atol=1e-4, rtol=1e-4
        )

    assert ["width_2.zip"] == list(compiled.packages)
    check_decoder(compiled)
