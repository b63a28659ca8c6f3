"""Detector of the Kirchenbauer watermark."""

import pytest
import torch
from transformers import PretrainedConfig, WatermarkDetector, WatermarkingConfig

from decodekit.processors import KirchenbauerDetector, KirchenbauerWatermark
from decodekit.speculation import PromptLookup

from .watermarked import TOKENS, VOCAB, texts

SCHEMES = [("lefthash", 1), ("lefthash", 3), ("selfhash", 1), ("selfhash", 3)]


def theirs(watermark: KirchenbauerWatermark, **settings: bool) -> WatermarkDetector:
    """Hugging Face's own detector of our watermark."""
    config = WatermarkingConfig(
        watermark.greenlist_ratio,
        2.0,
        watermark.hashing_key,
        watermark.seeding_scheme,
        watermark.context_width,
    )
    model = PretrainedConfig()
    model.vocab_size, model.bos_token_id = watermark.vocab_size, -1
    return WatermarkDetector(model, "cpu", config, **settings)


def repetitive(rows: int = 3, length: int = 50, vocab: int = VOCAB) -> torch.Tensor:
    """Random texts, of few tokens, so that n-grams repeat."""
    return torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(2))


class TestKirchenbauerDetector:
    @pytest.mark.parametrize(("scheme", "context_width"), SCHEMES)
    @pytest.mark.parametrize("ignore", [False, True])
    def test_equals_hugging_face(self, scheme: str, context_width: int, ignore: bool) -> None:
        """Every number that both give, on texts of one length."""
        watermark = KirchenbauerWatermark(
            0.4, seeding_scheme=scheme, context_width=context_width, vocab_size=VOCAB
        )
        ids = repetitive(vocab=5)
        expected = theirs(watermark, ignore_repeated_ngrams=ignore)(ids, return_dict=True)
        found = KirchenbauerDetector(watermark, ignore_repeated_ngrams=ignore)(ids)

        assert expected.num_tokens_scored.tolist() == found.num_tokens.tolist()
        assert expected.num_green_tokens.tolist() == found.num_green.tolist()
        assert expected.green_fraction.tolist() == found.green_fraction.tolist()
        assert expected.z_score.tolist() == pytest.approx(found.z_score.tolist(), rel=1e-12)
        assert expected.p_value.tolist() == pytest.approx(found.p_value.tolist(), rel=1e-12)
        assert expected.prediction.tolist() == found.prediction.tolist()

    @pytest.mark.mostly_slow(every=4)
    @pytest.mark.parametrize(("scheme", "context_width"), SCHEMES)
    def test_finds_the_mark_in_generated_text(self, scheme: str, context_width: int) -> None:
        """Marked texts stand out, unmarked ones and another key's do not; Hugging Face says the same."""
        settings = {"seeding_scheme": scheme, "context_width": context_width, "vocab_size": VOCAB}
        watermark = KirchenbauerWatermark(**settings)
        detect = KirchenbauerDetector(watermark)
        marked, plain = texts(watermark), texts(None)
        other = texts(KirchenbauerWatermark(hashing_key=99991, **settings))

        assert (detect(marked).z_score > 8).all()
        assert (detect(plain).z_score.abs() < 4).all()
        # A self-hash of width 1 favours the same tokens everywhere, so one key's may be another's.
        assert scheme == "selfhash" or (detect(other).z_score.abs() < 4).all()
        assert [True, True] == theirs(watermark)(torch.tensor(marked)).tolist()
        assert [False, False] == theirs(watermark)(torch.tensor(plain)).tolist()

    @pytest.mark.slow
    @pytest.mark.parametrize(("scheme", "context_width"), SCHEMES[1::2])
    def test_a_draft_changes_no_mark(self, scheme: str, context_width: int) -> None:
        """Speculation gives the same marked text, token for token."""
        watermark = KirchenbauerWatermark(seeding_scheme=scheme, context_width=context_width)

        assert texts(watermark) == texts(watermark, PromptLookup(min_ngram=1))

    def test_texts_may_have_any_lengths(self) -> None:
        """A text's numbers are its own: neighbours and padding do not count."""
        detect = KirchenbauerDetector(KirchenbauerWatermark(vocab_size=VOCAB))
        ids = repetitive()
        lengths = [50, 7, 20]
        ragged = [row[:n].tolist() for row, n in zip(ids, lengths, strict=True)]
        padded = torch.tensor([[*row, *[-1] * (50 - len(row))] for row in ragged])
        alone = [float(detect(row).z_score) for row in ragged]

        assert alone == detect(ragged).z_score.tolist()
        assert alone == detect(padded, lengths).z_score.tolist()
        assert alone == detect(padded.numpy(), torch.tensor(lengths)).z_score.tolist()

    def test_counts_by_hand(self) -> None:
        """With half the vocabulary green, 8 of 16 are expected, give or take 2."""
        watermark = KirchenbauerWatermark(0.5, vocab_size=VOCAB)
        text = [0]
        for _ in range(16):
            text.append(next(token for token in range(VOCAB) if watermark.is_green([text[-1], token])))
        found = KirchenbauerDetector(watermark)(text)

        assert (16, 16) == (int(found.num_tokens), int(found.num_green))
        assert 4.0 == float(found.z_score)
        assert 3.167e-5 == pytest.approx(float(found.p_value), rel=1e-3)

    def test_ignores_repetition(self) -> None:
        """A pair that repeats counts once."""
        watermark = KirchenbauerWatermark(vocab_size=VOCAB)

        assert 1 == int(KirchenbauerDetector(watermark, ignore_repeated_ngrams=True)([3] * 9).num_tokens)
        assert 8 == int(KirchenbauerDetector(watermark)([3] * 9).num_tokens)

    def test_threshold(self) -> None:
        """What is taken for marked lies above it."""
        watermark = KirchenbauerWatermark(vocab_size=VOCAB)
        text = texts(watermark)[0]
        z = float(KirchenbauerDetector(watermark)(text).z_score)

        assert not KirchenbauerDetector(watermark, z_threshold=z)(text).prediction
        assert KirchenbauerDetector(watermark, z_threshold=z - 1e-9)(text).prediction
        assert TOKENS == len(text)

    def test_refuses(self) -> None:
        """A watermark of unknown vocabulary, something else, and a text without a context."""
        with pytest.raises(ValueError, match="'watermark' must have its vocab_size given"):
            KirchenbauerDetector(KirchenbauerWatermark())
        with pytest.raises(TypeError, match="'watermark' must be"):
            KirchenbauerDetector(3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="text 1 must have at least 2 tokens to look at: got 1"):
            KirchenbauerDetector(KirchenbauerWatermark(vocab_size=8))([[1, 2], [1]])
        with pytest.raises(ValueError, match="'z_threshold' must be a number: got nan"):
            KirchenbauerDetector(KirchenbauerWatermark(vocab_size=8), z_threshold=float("nan"))
