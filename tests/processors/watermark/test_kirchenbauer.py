"""Kirchenbauer watermark."""

import logging

import pytest
import torch
from transformers.generation import logits_process as hf

from decodekit.decoding import History
from decodekit.processors import KirchenbauerWatermark

from ..by_hand import after, run


def theirs(vocab_size: int, **settings: object) -> hf.WatermarkLogitsProcessor:
    """Hugging Face's own, on the host."""
    return hf.WatermarkLogitsProcessor(vocab_size, "cpu", **settings)


def window(vocab_size: int, columns: int = 6) -> tuple[torch.Tensor, History]:
    """Two rows of random logits, the columns of each one token further on; the first follows nothing."""
    rng = torch.Generator().manual_seed(5)
    ids = torch.randint(0, vocab_size, (2, 1, columns), generator=rng)
    length = torch.arange(columns).expand(2, columns)
    zero = torch.zeros(2, dtype=torch.int64)
    return torch.randn(2, columns, vocab_size, generator=rng), History(ids, length, zero, zero)


class TestKirchenbauerWatermark:
    @pytest.mark.parametrize("scheme", ["lefthash", "selfhash"])
    @pytest.mark.parametrize("context_width", [1, 2, 4])
    @pytest.mark.parametrize("key", [15485863, 2**62 + 1])
    def test_equals_hugging_face_bit_for_bit(self, scheme: str, context_width: int, key: int) -> None:
        """Also in the columns that too little precedes, and where products do not fit in 64 bits."""
        logits, history = window(60)
        settings = {
            "greenlist_ratio": 0.3,
            "bias": 1.7,
            "hashing_key": key,
            "seeding_scheme": scheme,
            "context_width": context_width,
        }
        reference = theirs(60, **settings)
        logging.disable(logging.WARNING)  # theirs warns where too little precedes
        expected = [reference(history.ids[:, 0, :i], logits[:, i]) for i in range(logits.shape[1])]
        logging.disable(logging.NOTSET)

        assert torch.equal(torch.stack(expected, dim=1), KirchenbauerWatermark(**settings)(logits, history))

    def test_favours_a_share_of_the_vocabulary(self) -> None:
        """A quarter of 8 tokens gains 2 each, as Hugging Face draws them; the others stay."""
        green = theirs(8)._get_greenlist_ids(torch.tensor([5, 3])).tolist()

        assert 2 == len(green)
        assert [2.0 * (token in green) for token in range(8)] == run(
            KirchenbauerWatermark(), [0.0] * 8, after([5, 3])
        )

    def test_looks_at_the_last_token_alone(self) -> None:
        """Left-hashing draws one list for whatever came before the last token."""
        mark = KirchenbauerWatermark()

        assert run(mark, [0.0] * 40, after([1, 2, 3])) == run(mark, [0.0] * 40, after([7, 3]))
        assert run(mark, [0.0] * 40, after([3, 2, 1])) != run(mark, [0.0] * 40, after([7, 3]))

    def test_self_hashing_checks_the_top_40(self) -> None:
        """Of equal logits the first 40 are asked: no token behind them is favoured."""
        marked = run(KirchenbauerWatermark(seeding_scheme="selfhash"), [0.0] * 100, after([1]))

        assert 0 < sum(x > 0 for x in marked[:40])
        assert [0.0] * 60 == marked[40:]

    def test_draws_from_the_vocabulary_alone(self) -> None:
        """Logits beyond it, which some heads are padded with, are never green."""
        known = run(KirchenbauerWatermark(), [0.0] * 12, after([1]))

        assert [*known, 0.0, 0.0] == run(KirchenbauerWatermark(vocab_size=12), [0.0] * 14, after([1]))

    @pytest.mark.parametrize("scheme", ["lefthash", "selfhash"])
    def test_tells_what_is_green(self, scheme: str) -> None:
        """The tokens that are favoured after a context are those that complete a green n-gram."""
        mark = KirchenbauerWatermark(vocab_size=20, seeding_scheme=scheme, context_width=2)
        context = [4, 9] if scheme == "lefthash" else [9]

        assert [2.0 * mark.is_green([*context, token]) for token in range(20)] == run(
            mark, [0.0] * 20, after([4, 9])
        )
        assert not mark.is_green([*context, 20])

    def test_a_row_that_is_off_keeps_the_sign_of_its_zeros(self) -> None:
        """Adding nothing is not the same as adding 0."""
        logits = torch.full((2, 1, 8), -0.0)
        history = History(torch.ones(2, 1, 1).long(), *(torch.ones(s).long() for s in [(2, 1), (2,), (2,)]))

        assert KirchenbauerWatermark(bias=[0.0, 1.0])(logits, history)[0].signbit().all()

    def test_lists_survive_inference_mode(self) -> None:
        """A list drawn in inference mode is usable with gradients afterwards."""
        mark = KirchenbauerWatermark(hashing_key=77)
        with torch.inference_mode():
            run(mark, [0.0] * 8, after([1]))
        logits = torch.zeros(1, 1, 8, requires_grad=True)
        mark(logits, after([1])).sum().backward()

        assert torch.equal(torch.ones(1, 1, 8), logits.grad)

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"greenlist_ratio": 1.0}, ValueError, r"'greenlist_ratio' must be in \(0, 1\): got 1.0"),
            (
                {"greenlist_ratio": float("nan")},
                ValueError,
                r"'greenlist_ratio' must be in \(0, 1\): got nan",
            ),
            ({"greenlist_ratio": True}, TypeError, "'greenlist_ratio' must be a number: got True"),
            ({"bias": float("inf")}, ValueError, "'bias' must be finite in float32: got inf"),
            ({"hashing_key": 0}, ValueError, r"'hashing_key' must be in \[1, 2\^63\): got 0"),
            ({"hashing_key": 1.5}, TypeError, "'hashing_key' must be an integer: got 1.5"),
            ({"seeding_scheme": "both"}, ValueError, "'seeding_scheme' must be 'lefthash' or 'selfhash'"),
            ({"context_width": 0}, ValueError, "'context_width' must be >= 1: got 0"),
            ({"vocab_size": 0}, ValueError, "'vocab_size' must be >= 1: got 0"),
        ],
    )
    def test_refuses(self, settings: dict[str, object], error: type[Exception], message: str) -> None:
        """The message has the rule and the value."""
        with pytest.raises(error, match=message):
            KirchenbauerWatermark(**settings)  # type: ignore[arg-type]

    def test_refuses_a_vocabulary_beyond_the_logits(self) -> None:
        """Lists of another vocabulary would not be detectable."""
        with pytest.raises(ValueError, match="'vocab_size' must be at most the number of logits, 8: got 9"):
            run(KirchenbauerWatermark(vocab_size=9), [0.0] * 8, after([1]))

    def test_needs_the_vocabulary_to_tell(self) -> None:
        """Without logits nothing else says how long the lists are."""
        with pytest.raises(ValueError, match="'vocab_size' must be given"):
            KirchenbauerWatermark().is_green([1, 2])
