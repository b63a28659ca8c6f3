"""SynthID watermark."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.decoding import History
from decodekit.processors import SynthIDWatermark

from ..by_hand import after, run

KEYS = [654, 400, 836, 123, 340, 443, 597, 160, 57]
LOWEST = torch.finfo(torch.float64).min


def theirs(ngram_len: int = 5, context_history_size: int = 1024, **settings: object) -> Callable[..., Tensor]:
    """Hugging Face's own."""
    return hf.SynthIDTextWatermarkLogitsProcessor(
        ngram_len,
        KEYS,
        sampling_table_size=65536,
        sampling_table_seed=0,
        context_history_size=context_history_size,
        device=torch.device("cpu"),
        **settings,
    )


def sequence(steps: int, vocab: int = 50, tokens: int = 2, prompt: int = 3) -> tuple[Tensor, History]:
    """
    Random logits for each of *steps* columns of two rows, after a prompt.

    Of few tokens, so that contexts repeat, within reach and beyond it.
    """
    rng = torch.Generator().manual_seed(9)
    # In float64: the sums of ours are exact, theirs round.
    logits = 2 * torch.randn(2, steps, vocab, generator=rng, dtype=torch.float64)
    ids = torch.randint(0, tokens, (2, 1, prompt + steps), generator=rng)
    length = prompt + torch.arange(steps).expand(2, steps)
    return logits, History(ids, length, torch.full((2,), prompt), torch.zeros(2).long())


class TestSynthIDWatermark:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"ngram_len": 2},
            {"ngram_len": 4, "context_history_size": 5},
            {"ngram_len": 4, "skip_first_ngram_calls": True},
            {"ngram_len": 4, "context_history_size": 5, "skip_first_ngram_calls": True},
            {"context_history_size": 0},
        ],
    )
    def test_equals_hugging_face_step_by_step(self, settings: dict[str, int]) -> None:
        """A window of all columns is what theirs, called once for each token, keeps in its state."""
        logits, history = sequence(40)
        reference = theirs(**settings)
        expected = [
            reference(history.ids[:, 0, : int(history.length[0, i])], logits[:, i])
            for i in range(logits.shape[1])
        ]
        marked = SynthIDWatermark(KEYS, **settings)(logits, history)

        torch.testing.assert_close(torch.stack(expected, dim=1), marked, rtol=0, atol=1e-9)
        unmarked = (marked == logits).all(dim=-1)
        assert unmarked.any() or not settings.get("context_history_size", 1)
        assert not unmarked.all()

    def test_equals_hugging_face_in_float32(self) -> None:
        """Up to the rounding of nine layers of theirs, on probabilities as well as on their logarithms."""
        logits, history = sequence(1)
        expected = theirs()(history.ids[:, 0, :3], logits[:, 0].float())
        marked = SynthIDWatermark(KEYS)(logits.float(), history)[:, 0]

        assert torch.float32 == marked.dtype
        torch.testing.assert_close(expected.exp(), marked.exp(), rtol=0, atol=1e-6)
        torch.testing.assert_close(expected, marked, rtol=1e-3, atol=0)

    def test_equals_itself_one_column_at_a_time(self) -> None:
        """Bit for bit, whatever the columns around, and after any rewind."""
        logits, history = sequence(40)
        mark = SynthIDWatermark(KEYS, ngram_len=3, context_history_size=7)
        together = mark(logits, history)

        for column in reversed(range(40)):
            one = History(
                history.ids, history.length[:, column : column + 1], history.prompt, history.random_stream
            )
            assert torch.equal(together[:, column : column + 1], mark(logits[:, column : column + 1], one))

    def test_forbidden_tokens_stay_so(self) -> None:
        """Where theirs gives the lowest number, ours is -inf."""
        logits, history = sequence(3)
        logits[..., ::2] = -torch.inf
        ours, expected = (
            SynthIDWatermark(KEYS)(logits, history),
            theirs()(history.ids[:, 0, :3], logits[:, 0]),
        )

        assert torch.equal(expected == LOWEST, ours[:, 0] == -torch.inf)
        assert (ours[..., ::2] == -torch.inf).all()

    def test_leaves_what_is_certain(self) -> None:
        """With one token left there is no tournament; nor does a row without one get any."""
        assert [-torch.inf, 0.0] == run(SynthIDWatermark(KEYS), [-torch.inf, 7.0], after([1]))
        assert [-torch.inf] * 2 == run(SynthIDWatermark(KEYS), [-torch.inf] * 2, after([1]))

    def test_a_layer_by_hand(self) -> None:
        """With p = ½, ¼, ¼ a token whose coin is 1 wins against all the mass whose coin is 0."""
        probs = [0.5, 0.25, 0.25]
        met = set()
        for key in range(40):
            mark = SynthIDWatermark([key], ngram_len=2)
            # The token before is the context.
            g = mark.g_values(torch.tensor([[1, 0], [1, 1], [1, 2]])).flatten().tolist()
            lost = sum(p for p, one in zip(probs, g, strict=True) if not one)
            expected = [p * (one + lost) for p, one in zip(probs, g, strict=True)]
            marked = run(mark, torch.tensor(probs).log().tolist(), after([1]))
            met.add(tuple(g))

            assert expected == pytest.approx(torch.tensor(marked).exp().tolist(), abs=1e-6)
            assert 1.0 == pytest.approx(sum(expected))
        assert 8 == len(met)

    def test_keeps_probabilities_on_average(self) -> None:
        """Over 4,000 keys each token's mean probability is its own, within 5 sigma."""
        probs = torch.tensor([0.6, 0.3, 0.1])
        history = after([1, 2])
        each = torch.stack(
            [
                SynthIDWatermark([key, key * key + 17])(probs.log()[None, None], history).exp()[0, 0]
                for key in range(1, 4000 * 7919, 7919)
            ]
        ).double()

        assert ((each.mean(dim=0) - probs).abs() <= 5 * each.std(dim=0) / 4000**0.5).all()

    def test_a_repeated_context_is_not_marked(self) -> None:
        """The second time, the logits are left as they are, prompt and what lies beyond reach aside."""
        mark = SynthIDWatermark(KEYS, ngram_len=3, context_history_size=4)
        logits = [0.0, 1.0, 2.0]

        assert logits != run(mark, logits, after([1, 2, 0, 1, 2], prompt=3))  # the prompt's do not count
        assert logits == run(mark, logits, after([1, 2, 0, 1, 2]))
        assert logits != run(mark, logits, after([1, 2, 0, 0, 1, 1, 2]))  # five ago

    def test_g_values_equal_hugging_face(self) -> None:
        """Of any text, and so do the contexts that are new in it."""
        ids = torch.randint(0, 3, (2, 60), generator=torch.Generator().manual_seed(1))
        for n, reach in [(2, 1024), (5, 1024), (4, 6)]:
            mark, reference = SynthIDWatermark(KEYS, n, reach), theirs(n, reach)

            assert torch.equal(reference.compute_g_values(ids), mark.g_values(ids).long())
            assert torch.equal(reference.compute_context_repetition_mask(ids), mark.fresh_contexts(ids))

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"keys": 3}, TypeError, "'keys' must be integers: got 3, a int"),
            ({"keys": [1.5]}, TypeError, "'keys' must be integers: got 1.5, a float"),
            ({"keys": [True]}, TypeError, "'keys' must be integers: got True, a bool"),
            ({"keys": [1 << 63]}, ValueError, "'keys' must fit in 64 bits: got 9223372036854775808"),
            ({"ngram_len": 1}, ValueError, "'ngram_len' must be >= 2: got 1"),
            ({"context_history_size": -1}, ValueError, "'context_history_size' must be >= 0: got -1"),
            (
                {"sampling_table_seed": -1},
                ValueError,
                r"'sampling_table_seed' must be in \[0, 2\^63\): got -1",
            ),
            ({"sampling_table_size": 0}, ValueError, r"'sampling_table_size' must be in \[1, 2\^24\]: got 0"),
            ({"skip_first_ngram_calls": 1}, TypeError, "'skip_first_ngram_calls' must be"),
        ],
    )
    def test_refuses(self, settings: dict[str, object], error: type[Exception], message: str) -> None:
        """The message has the rule and the value."""
        with pytest.raises(error, match=message):
            SynthIDWatermark(**{"keys": KEYS, **settings})  # type: ignore[arg-type]
