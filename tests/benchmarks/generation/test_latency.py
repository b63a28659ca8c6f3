"""Latency benchmark."""

import json
from pathlib import Path

import attrs
import pytest

from decodekit.__main__ import main
from decodekit.benchmarks.generation.latency import LatencyMeasurement, report
from decodekit.benchmarks.models.measured_model import ModelUnderTest
from decodekit.benchmarks.models.shapes import shape_named

ARGUMENTS = ["bench", "latency", "--target", "eager", "--threads", "1", "--rounds", "2"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each batch reaches the length from three starts; with table, JSON and plot."""
    file, plot = tmp_path / "latency.json", tmp_path / "latency.svg"
    status = main(
        [
            *ARGUMENTS,
            "--shape",
            "tiny",
            "--batch",
            "1",
            "2",
            "--length",
            "16",
            "--dtype",
            "float32",
            "--json",
            str(file),
            "--plot",
            str(plot),
        ]
    )
    found = json.loads(file.read_text())

    assert 0 == status
    assert plot.exists()
    assert [(1, [4, 8, 12], [12, 8, 4]), (2, [4, 8, 12], [24, 16, 8])] == [
        (each["batch"], each["starts"], each["tokens"]) for each in found["results"]
    ]
    assert [[2, 2, 2], [2, 2, 2]] == [[len(s) for s in each["seconds"]] for each in found["results"]]
    assert "Seconds to reach 16 tokens" in capsys.readouterr().out


def test_a_model_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named by its folder; without published figures."""
    import torch

    shape_named("tiny").model(32, torch.float32).save_pretrained(tmp_path / "mine")
    status = main([*ARGUMENTS, "--model", str(tmp_path / "mine"), "--length", "16"])
    out = capsys.readouterr().out

    assert 0 == status
    assert "mine" in out
    assert "published" not in out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--shape", "huge"],
        ["--shape", "tiny", "--length", "4"],
        ["--shape", "tiny", "--rounds", "0"],
        ["--shape", "tiny", "--layers", "9"],
        ["--model", "somewhere", "--layers", "1"],
    ],
)
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, status 1."""
    assert 1 == main([*ARGUMENTS, *wrong])
    assert capsys.readouterr().err.splitlines()[-1].startswith("decodekit: ")


def measured(**changes: int) -> LatencyMeasurement:
    """Measurement of a Llama-2 7B with invented times."""
    model = ModelUnderTest(shape_named("llama-2-7b").scaled(**changes))
    seconds = ((2.0,), (1.0,), (0.5,))
    return LatencyMeasurement(model, 1, "abacus", seconds, (768, 512, 256), {"target": "eager"})


def test_published_figures_stand_beside_ours() -> None:
    """The blog's figures of the shape, both configurations, with tokens per second: 768 / 47.4 s."""
    seconds, speeds = report([measured()], 1024, 1).tables

    assert [("published: 7B budget, 2 cores", 1, "47.4", "31.9", "16.2")] == [
        row for row in seconds.rows if "budget" in row[0]
    ]
    assert 2 == sum("published" in row[0] for row in seconds.rows)
    assert pytest.approx((384.0, 512.0, 512.0)) == speeds.rows[0][2:]
    assert pytest.approx(768 / 47.4) == next(row for row in speeds.rows if "budget" in row[0])[2]


def test_published_rows_count_together() -> None:
    """Four of 13B's, each with 768 new tokens in 13 seconds."""
    model = ModelUnderTest(shape_named("llama-2-13b"))
    _, speeds = report([attrs.evolve(measured(), model=model)], 1024, 1).tables

    assert pytest.approx(4 * 768 / 13) == next(row for row in speeds.rows if "throughput" in row[0])[2]


def test_a_scaled_model_is_named_so() -> None:
    """In the row and in the notes."""
    found = report([measured(layers=1)], 1024, 1)

    assert "SCALED DOWN" in found.tables[0].rows[0][0]
    assert any("does not predict the figures" in note for note in found.notes)
    assert not any("does not predict the figures" in note for note in report([measured()], 1024, 1).notes)
