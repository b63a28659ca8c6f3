"""Results and statistics in one line, and as HTML."""

import torch

from decodekit.decoding import Finish, Generation, Generator, Statistics
from decodekit.processors import Temperature, TopK
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder


def generation(text: list[str] | None, rows: int = 1) -> Generation:
    """Rows of fifteen tokens."""
    statistics = Statistics(tokens=15 * rows, forwards=16, total_seconds=1.5)
    ids = [list(range(15)) for _ in range(rows)]
    return Generation([[1]] * rows, ids, text, [Finish("end_of_sequence")] * rows, statistics)


class TestRepr:
    def test_is_one_line(self) -> None:
        """Also where the text has several, is long, or is none."""
        assert "<Generation of 1 row: 15 tokens, end_of_sequence, 'a\\nb'>" == repr(generation(["a\nb"]))
        assert len(repr(generation(["x" * 10_000]))) < 150
        assert "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]>" in repr(generation(None))
        assert "<Generation of 0 rows: 0 tokens>" == repr(generation(None, 0))

    def test_of_statistics_has_tau_after_drafts(self) -> None:
        """And no τ without."""
        statistics = Statistics()
        assert "τ" not in repr(statistics)
        statistics.record(3, 2, 2)
        assert repr(statistics).endswith("0 forwards, τ = 3.00>")

    def test_of_generators_names_the_parts(self) -> None:
        """And the decoder's shape."""
        decoder = ScriptedDecoder(torch.zeros(3, 8))
        shown = "decoder=ScriptedDecoder(batch_size=1, max_length=64, widths=(1, 5, 16))"

        plain = repr(Generator(decoder, processors=Temperature(0.5) | TopK(3)))
        assert plain.startswith(f"<Generator: {shown}, processors=Temperature | TopK, sampler=Greedy, stop=")
        speculative = repr(SpeculativeGenerator(decoder, PromptLookup()))
        assert speculative.startswith(f"<SpeculativeGenerator: {shown}, sampler=Greedy")
        assert "drafter=PromptLookup" in speculative


class TestHtml:
    def test_of_generators_is_escaped(self) -> None:
        """The names of parts come from their classes."""
        odd = type("<i>", (ScriptedDecoder,), {})(torch.zeros(3, 8))

        html = Generator(odd)._repr_html_()

        assert "<i>" not in html
        assert "<td>&lt;i&gt;(batch_size=1" in html

    def test_is_escaped(self) -> None:
        """Text of a model is no markup."""
        html = generation(["<script>alert('x')</script>"])._repr_html_()

        assert "<script>" not in html
        assert "&lt;script&gt;" in html

    def test_is_small(self) -> None:
        """Some rows, then the number of others."""
        html = generation(["x" * 10_000] * 50, 50)._repr_html_()

        assert len(html) < 1500
        assert "and 46 more" in html

    def test_of_statistics_names_phases(self) -> None:
        """And τ after drafts."""
        statistics = Statistics(seconds={"target": 0.25}, total_seconds=1.0)
        statistics.record(3, 2, 2)
        html = statistics._repr_html_()

        assert "<th>seconds: target</th><td>0.250</td>" in html
        assert "<th>τ</th><td>3.000</td>" in html
