"""Throughput benchmark."""

import json
from pathlib import Path

import pytest

from decodekit.__main__ import main
from decodekit.benchmarks.generation.throughput import ThroughputMeasurement, report
from decodekit.benchmarks.models.measured_model import ModelUnderTest
from decodekit.benchmarks.models.shapes import shape_named
from decodekit.benchmarks.peers.published_figures import LENGTHS, THROUGHPUTS

ARGUMENTS = ["bench", "throughput", "--shape", "tiny", "--target", "eager", "--threads", "1", "--rounds", "2"]


def test_the_command(tmp_path: Path) -> None:
    """One decoder serves all lengths; only generated tokens are counted."""
    file = tmp_path / "throughput.json"
    status = main([*ARGUMENTS, "--batch", "2", "--lengths", "4/8", "12/4", "--json", str(file)])
    found = json.loads(file.read_text())

    assert 0 == status
    assert [([4, 8], 16), ([12, 4], 8)] == [(each["lengths"], each["tokens"]) for each in found["results"]]
    assert all(0 < first < all_ for each in found["results"] for first, all_ in zip(
        each["first_seconds"], each["seconds"], strict=True))  # fmt: skip


@pytest.mark.parametrize("wrong", [["--lengths", "0/4"], ["--rounds", "0"], ["--batch", "0"]])
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, status 1."""
    assert 1 == main([*ARGUMENTS, *wrong])
    assert capsys.readouterr().err.splitlines()[-1].startswith("decodekit: ")


def test_published_figures_stand_beside_ours() -> None:
    """Only for the same shape, with cards and batch; ours is tokens over total time."""
    model = ModelUnderTest(shape_named("llama-2-70b").scaled(layers=1))
    seconds, first = (4.0, 2.0, 8.0), (1.0, 1.0, 1.0)
    ours = ThroughputMeasurement(model, 2, (128, 2048), "abacus", seconds, first, 4096, {})
    (table,) = report([ours], 3).tables

    assert "1024 (512–2048)" == table.rows[0][3]
    assert "SCALED DOWN" in table.rows[0][0]
    assert ("published: llama-2-70b, Gaudi, 4 cards", "128/2048", 750, 7422, None) in table.rows
    assert 1 + 4 == len(table.rows)


def test_every_published_figure_has_its_lengths() -> None:
    """Three shapes at four pairs of lengths; the last of Mistral-7B."""
    assert [lengths for _ in range(3) for lengths in LENGTHS] == [each.lengths for each in THROUGHPUTS]
    last = THROUGHPUTS[-1]
    assert ("mistral-7b", 44, 1, 3143) == (last.shape, last.batch, last.cards, last.tokens_per_second)
