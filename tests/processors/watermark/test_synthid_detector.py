"""Detector of the SynthID watermark."""

import math

import pytest
import torch
from transformers import BayesianDetectorConfig, BayesianDetectorModel, SynthIDTextWatermarkDetector
from transformers.generation import logits_process as hf

from decodekit.processors import SynthIDDetector, SynthIDWatermark
from decodekit.speculation import PromptLookup

from .watermarked import texts

KEYS = list(range(101, 131))
MARK = SynthIDWatermark(KEYS)


class TestSynthIDDetector:
    def test_finds_the_mark_in_generated_text(self) -> None:
        """Marked texts stand out; unmarked ones and another key's do not."""
        detect = SynthIDDetector(MARK)
        marked, plain = detect(texts(MARK)), detect(texts(None))
        other = detect(texts(SynthIDWatermark([key + 5000 for key in KEYS])))

        assert (marked.z_score > 8).all()
        assert (marked.p_value < 1e-12).all()
        assert marked.prediction.all()
        assert (plain.z_score.abs() < 4).all()
        assert (other.z_score.abs() < 4).all()

    def test_a_draft_changes_no_mark(self) -> None:
        """Speculation gives the same marked text, token for token."""
        assert texts(MARK) == texts(MARK, PromptLookup(min_ngram=1))

    def test_null_distribution(self) -> None:
        """On 400 random texts the z-score has mean 0 and variance 1, within 5 sigma."""
        z = SynthIDDetector(MARK)(
            torch.randint(0, 1000, (400, 60), generator=torch.Generator().manual_seed(8))
        ).z_score

        assert abs(float(z.mean())) < 5 / math.sqrt(400)
        assert abs(float(z.var()) - 1) < 5 * math.sqrt(2 / 400)

    def test_scores_by_hand(self) -> None:
        """The mean of the ones, and the same with weights 10, 5.5 and 1 of 16.5."""
        mark = SynthIDWatermark([3, 14, 16], ngram_len=2)
        text = [1, 2, 3, 4, 1, 2]  # the last context repeats
        g = mark.g_values(torch.tensor(text))[:4].double().mean(dim=0)
        found = SynthIDDetector(mark)(text)

        assert g[0] != g[2]
        assert 4 == int(found.num_tokens)
        assert float(found.mean) == pytest.approx(float(g.mean()))
        assert float(found.weighted_mean) == pytest.approx(float((10 * g[0] + 5.5 * g[1] + g[2]) / 16.5))

    def test_texts_may_have_any_lengths(self) -> None:
        """A text's numbers are its own: neighbours, padding and what follows its end do not count."""
        detect = SynthIDDetector(MARK, eos=63)
        first, second = (row[:40] for row in texts(MARK))
        first, second = ([token % 63 for token in row] for row in (first, second))
        alone = [float(detect(row).z_score) for row in (first, second[:9])]

        assert alone == detect([first, second[:9]]).z_score.tolist()
        assert alone == detect(torch.tensor([first, second]), [40, 9]).z_score.tolist()
        assert alone == detect([first, [*second[:9], 63, *second]]).z_score.tolist()

    # The model's own reading of its weights warns in some versions.
    @pytest.mark.filterwarnings("ignore")
    def test_feeds_hugging_faces_bayesian_detector(self) -> None:
        """Our evidence makes of its model what its own does."""
        torch.manual_seed(0)
        model = BayesianDetectorModel(BayesianDetectorConfig(watermarking_depth=len(KEYS)))
        processor = hf.SynthIDTextWatermarkLogitsProcessor(
            5, KEYS, 65536, 0, 1024, device=torch.device("cpu")
        )
        tokenizer = type("Tokenizer", (), {"eos_token_id": 63})
        ids = torch.tensor(texts(MARK))
        with torch.no_grad():
            (expected,) = SynthIDTextWatermarkDetector(model, processor, tokenizer)(ids)
            (ours,) = model(*SynthIDDetector(MARK, eos=63).evidence(ids))

        assert torch.equal(expected, ours)

    def test_refuses(self) -> None:
        """A watermark without keys, something else, and a text without a context."""
        with pytest.raises(ValueError, match="'watermark' must have keys"):
            SynthIDDetector(SynthIDWatermark([]))
        with pytest.raises(TypeError, match="'watermark' must be"):
            SynthIDDetector(3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="text 0 must have at least 5 tokens to look at: got 2"):
            SynthIDDetector(MARK, eos=[9])([1, 2, 9, 4, 5, 6])
        with pytest.raises(ValueError, match="'z_threshold' must be a number: got nan"):
            SynthIDDetector(MARK, z_threshold=float("nan"))
