import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.neuron_backend import StaticDecoder
from decodekit.neuron_backend.kv_cache.buffers import CacheBuffers

SERVED = ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "opt", "phi", "mixtral", "gemma2"]
PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30], [7]]

Models = Callable[..., PreTrainedModel]


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


def pos(*positions: int) -> Tensor:
    return torch.tensor(positions)


class TestGreedyText:
    """Whole generations."""

    @pytest.mark.parametrize("name", SERVED)
    def test_is_the_stock_models(self, name, tiny_model: Models, greedy, stock):
        """Rows of different lengths, beyond any sliding window, equal ``generate``."""
        # Gemma-2's stock model gives NaN for padded rows in float64.
        model = tiny_model(name, torch.float32 if name == "gemma2" else torch.float64)
        decoder = StaticDecoder(model, batch_size=3, max_length=64, widths=(1, 4))

        text = greedy(decoder, PROMPTS, 48)

        assert stock(model, PROMPTS, 48) == text
        # A repetitive text would prove nothing.
        assert sorted(len(set(row)) for row in text)[1] > 8

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
    def test_follows_in_every_dtype(self, dtype, tiny_model: Models, greedy):
        """Every dtype is supported, with float32 logits."""
        decoder = StaticDecoder(tiny_model("llama"), max_length=32, widths=(1, 4), dtype=dtype)

        logits = decoder.forward(ids([5]), pos(0))

        assert torch.float32 == logits.dtype
        assert f"torch.{dtype}" == str(decoder.cache.keys[0].dtype)
        assert len(greedy(decoder, [[3, 4]], 20)[0]) == 20

    @pytest.mark.parametrize("weights", [None, "int8"])
    def test_is_compared_in_float32_if_all_weights_are_few(self, weights, tiny_model: Models, monkeypatch):
        """Quantised ones count."""
        model = tiny_model("llama")
        options = {"max_length": 32, "widths": (1, 4), "dtype": "bfloat16", "weights": weights}
        limit = "decodekit.neuron_backend.parity.widened._MOST_WEIGHTS"

        assert StaticDecoder(model, **options).compared_in_float32
        monkeypatch.setattr(limit, model.num_parameters() - 1)
        assert not StaticDecoder(model, **options).compared_in_float32

    def test_is_compared_over_a_short_cache(self, tiny_model: Models, monkeypatch):
        """The float32 cache of all positions would take twice the memory of the decoder's own."""
        made, zeros = [], CacheBuffers.zeros

        def recorded(geometry, rows, max_length, scratch):
            made.append(max_length)
            return zeros(geometry, rows, max_length, scratch)

        monkeypatch.setattr(CacheBuffers, "zeros", recorded)
        monkeypatch.setattr("decodekit.neuron_backend.parity.widened._PROBED", 40)
        decoder = StaticDecoder(tiny_model("gemma2"), max_length=100, widths=(1, 8), dtype="bfloat16")

        assert decoder.compared_in_float32
        # The window is 16.
        assert [100, 2 * 16 + 40] == made


class TestCacheByPosition:
    """Position-addressed cache."""

    def test_rewinding_is_a_smaller_cache_pos(self, llama):
        """Wrong tokens leave no trace once others are fed at their positions."""
        llama.forward(ids([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), pos(0, 0))
        expected = llama.forward(ids([11, 12, 13, 14, 15], [16, 17, 18, 19, 20]), pos(3, 5)).clone()
        llama.forward(ids([50, 51, 52, 53, 54], [55, 56, 57, 58, 59]), pos(3, 5))

        again = llama.forward(ids([11, 12, 13, 14, 15], [16, 17, 18, 19, 20]), pos(3, 5))

        assert torch.equal(expected, again)

    def test_rows_do_not_see_each_other(self, llama):
        """A row's logits stay when its neighbour is at another position with other tokens."""
        first = llama.forward(ids([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), pos(0, 0))[0].clone()
        second = llama.forward(ids([1, 2, 3, 4, 5], [30, 31, 32, 33, 34]), pos(0, 20))[0]

        assert torch.equal(first, second)

    @pytest.mark.parametrize("width", [1, 5, 16])
    def test_chunks_of_any_width_agree(self, width, llama, prefill):
        """Logits do not depend on the width of the chunks."""
        rows = [list(range(1, 30)), list(range(40, 60))]
        expected = prefill(llama, rows, 1).clone()

        torch.testing.assert_close(prefill(llama, rows, width), expected, atol=2e-5, rtol=1e-5)

    def test_wide_forwards_score_their_last_column(self, tiny_model: Models):
        """Forwards wider than scored_width return logits of the last column only."""
        narrow = StaticDecoder(tiny_model("gpt2"), max_length=32, widths=(4, 8), scored_width=4)
        full = StaticDecoder(tiny_model("gpt2"), max_length=32, widths=(4, 8), scored_width=8)
        tokens = ids([1, 2, 3, 4, 5, 6, 7, 8])

        assert tuple(narrow.forward(tokens[:, :4], pos(0)).shape) == (1, 4, 61)
        torch.testing.assert_close(
            narrow.forward(tokens, pos(0)), full.forward(tokens, pos(0))[:, -1:], atol=2e-5, rtol=1e-5
        )


class TestPadding:
    """Columns without a token."""

    def test_may_be_anywhere(self, llama):
        """Padding between tokens takes up its position and changes nothing else."""
        dense = llama.forward(ids([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), pos(0, 0)).clone()

        gaps = llama.forward(ids([-1, 2, -1, 4, 5], [6, -1, 8, 9, -1]), pos(0, 0))

        assert torch.equal(dense[0, [1, 3, 4]], gaps[0, [1, 3, 4]])
        assert torch.equal(dense[1, [0, 2, 3]], gaps[1, [0, 2, 3]])

    def test_writes_no_position(self, llama):
        """A row of padding does not change its cache, whatever its cache_pos."""
        llama.forward(ids([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), pos(0, 0))
        before = [buffer[:, :, llama.cache.reserved :].clone() for buffer in llama.cache.tensors]

        llama.forward(torch.full((2, 5), -1), pos(-(2**62), 2**62))

        assert all(
            torch.equal(old, new[:, :, llama.cache.reserved :])
            for old, new in zip(before, llama.cache.tensors, strict=True)
        )

    def test_lets_cache_pos_be_negative(self, llama):
        """Right-aligned rows begin before position 0, under padding."""
        plain = llama.forward(ids([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), pos(0, 0)).clone()

        shifted = llama.forward(ids([-1, -1, 1, 2, 3], [-1, 6, 7, 8, 9]), pos(-2, -1))

        torch.testing.assert_close(plain[0, :3], shifted[0, 2:], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(plain[1, :4], shifted[1, 1:], atol=2e-5, rtol=1e-5)

    def test_gives_finite_logits(self, llama):
        """A row of padding does not give NaN."""
        assert llama.forward(torch.full((2, 16), -1), pos(0, 0)).isfinite().all()

    def test_reaches_up_to_the_last_position(self, llama):
        """The last position is a token's; columns beyond it have to be padding."""
        logits = llama.forward(ids([-1, -1, -1, -1, 5], [6, -1, -1, -1, -1]), pos(59, 63))

        assert logits.isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2"])
def test_slots_without_a_token_weigh_nothing(name, dtype, tiny_model: Models):
    """Garbage in every slot that no token owns, the spare one included, changes no bit."""
    clean, dirty = (
        StaticDecoder(tiny_model(name), batch_size=2, max_length=40, widths=(1, 5), dtype=dtype)
        for _ in range(2)
    )
    owned = torch.zeros(clean.cache.keys[0].shape[::2], dtype=torch.bool)
    script = [
        (ids([-1, -1, 1, 2, 3], [6, 7, 8, 9, 10]), pos(-2, 0)),
        (ids([4, 5, 6, 7, 8], [11, -1, -1, -1, -1]), pos(3, 5)),
        (ids([9], [-1]), pos(4, 0)),
        (ids([9, 10, 11, 12, 13], [12, 13, 14, 15, 16]), pos(5, 6)),
        *((ids([step], [step + 1]), pos(10 + step, 11 + step)) for step in range(20)),
    ]
    for tokens, cache_pos in script:
        for buffer in dirty.cache.tensors:
            buffer.masked_fill_(~owned[:, None, :, None], 1e9)
        expected, found = clean.forward(tokens, cache_pos), dirty.forward(tokens, cache_pos)

        assert torch.equal(expected[tokens >= 0], found[tokens >= 0])

        positions = cache_pos[:, None] + torch.arange(tokens.shape[1])
        for row in range(2):
            owned[row, clean.cache.reserved + positions[row][tokens[row] >= 0]] = True


class TestModel:
    """The caller's model."""

    def test_is_not_modified(self, tiny_model: Models):
        """Mode, dtype and weights of the caller's model stay; the weights are shared."""
        model = copy.deepcopy(tiny_model("llama")).train()

        decoder = StaticDecoder(model, max_length=16, widths=(1,))

        assert model.training
        assert not decoder.step.model.training
        assert model.lm_head.weight is decoder.step.model.lm_head.weight

    def test_in_training_mode_is_served_without_dropout(self, tiny_model: Models):
        """Dropout, which GPT-2 has by default, is disabled."""
        model = copy.deepcopy(tiny_model("gpt2")).train()
        decoder = StaticDecoder(model, max_length=16, widths=(1,))

        assert torch.equal(decoder.forward(ids([5]), pos(0)), decoder.forward(ids([5]), pos(0)))

    def test_logits_are_ordinary_tensors(self, llama):
        """Callers may modify them in place, outside of inference mode."""
        logits = llama.forward(ids([1], [2]), pos(0, 0))

        assert not logits.requires_grad
        assert not logits.is_inference()

    def test_ids_may_have_any_strides(self, llama):
        """Views of larger tensors are accepted."""
        board = torch.arange(20).view(5, 4).T[:2]

        assert torch.equal(
            llama.forward(board.contiguous(), pos(0, 0)).clone(), llama.forward(board, pos(0, 0))
        )


def test_may_be_made_in_inference_mode(tiny_model):
    """And used outside it, which writes to its cache."""
    with torch.inference_mode():
        decoder = StaticDecoder(tiny_model("llama"), max_length=8, widths=(1, 2))
    expected = StaticDecoder(tiny_model("llama"), max_length=8, widths=(1, 2))
    ids, start = torch.tensor([[3, 5]]), torch.tensor([0])

    assert torch.equal(expected.forward(ids, start), decoder.forward(ids, start))
