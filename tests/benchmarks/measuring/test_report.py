"""Reports and their formats."""

import sys
from pathlib import Path
from typing import Any

import pytest

from decodekit.benchmarks.measuring.report import Curves, Report, Threshold, command_line, finish
from decodekit.benchmarks.measuring.tables import Spread, Table


def a_report(**changes: Any) -> Report:
    """A report with every field."""
    parts: dict[str, Any] = {
        "benchmark": "toy",
        "question": "How long is a piece of string?",
        "settings": {"widths": (1, 5), "rounds": 3},
        "tables": [Table("Lengths", ("string", "cm"), [("one", 3.14159), ("two | three", None)])],
        "thresholds": [Threshold("one", 3.0, "<=", 4.0, " cm"), Threshold("two", 3.0, ">=", 4.0)],
        "notes": ["Absent: glue."],
        "curves": Curves("Strings", "number", "cm", {"ours": [[1.0, 2.0], [2.0, 4.0]]}),
        "results": {"cm": [3.14159]},
    }
    return Report(**{**parts, **changes})


class TestSpread:
    def test_of_an_even_number(self) -> None:
        """The median of an even count is the mean of the middle two; outliers move it little."""
        assert Spread(2.5, 1.0, 100.0, 4) == Spread.of([3.0, 1.0, 2.0, 100.0])

    def test_another_unit(self) -> None:
        """Median and bounds are scaled, the count is not."""
        assert Spread(2000.0, 1000.0, 3000.0, 3) == Spread.of([1.0, 2.0, 3.0]).scaled(1000)


class TestBar:
    @pytest.mark.parametrize(
        ("value", "rule", "met"),
        [(1.0, "<=", True), (1.01, "<=", False), (1.0, ">=", True), (0.99, ">=", False)],
    )
    def test_the_goal_itself_is_met(self, value: float, rule: Any, met: bool) -> None:
        """Equality meets the goal, for both rules."""
        assert met == Threshold("what", value, rule, 1.0).met

    def test_a_miss_is_reported(self) -> None:
        """A miss is emphasised."""
        assert "speed: 0.9×, goal >= 1×: NOT MET" == str(Threshold("speed", 0.9, ">=", 1.0, "×"))


class TestTable:
    def test_a_row_too_short_is_refused(self) -> None:
        """Rows must have as many cells as columns."""
        with pytest.raises(ValueError, match="'rows' must have 2 cells each"):
            Table("t", ("a", "b"), [(1,)])

    def test_markdown(self) -> None:
        """None is a dash; a ``|`` in a cell does not end it."""
        lines = a_report().tables[0].markdown().splitlines()

        assert ["| string | cm |", "| --- | ---: |", "| one | 3.14 |", "| two \\| three | – |"] == lines[2:]

    def test_text_has_columns(self) -> None:
        """Numbers are right-aligned with their column name."""
        _, names, first, _ = a_report().tables[0].text().splitlines()

        assert len(names) == len(first)


class TestReport:
    def test_it_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        """Tables, thresholds and curves survive the round trip."""
        report = a_report()
        report.write(tmp_path / "new" / "toy.json")
        found = Report.read(tmp_path / "new" / "toy.json")

        assert report.text() == found.text()
        assert report.curves == found.curves
        assert report.thresholds == found.thresholds

    def test_without_curves(self, tmp_path: Path) -> None:
        """The same without optional fields."""
        a_report(curves=None).write(tmp_path / "toy.json")

        assert Report.read(tmp_path / "toy.json").curves is None

    @pytest.mark.parametrize(
        "text", ["{}", "[]", "no JSON", '{"tables": [], "thresholds": [], "curves": null}']
    )
    def test_another_file_is_refused(self, text: str, tmp_path: Path) -> None:
        """Named in the message."""
        file = tmp_path / "other.json"
        file.write_text(text)

        with pytest.raises(ValueError, match=r"must be a benchmark's report: got .*other\.json"):
            Report.read(file)

    def test_it_names_the_machine(self) -> None:
        """The machine, the versions, the settings, the date."""
        report = a_report(machine={"device": "abacus", "cores": 1}, versions={"Python": "3"}, date="today")

        assert "abacus, cores 1\nPython 3\nwidths 1 5, rounds 3\ntoday" == report.header()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["start", "--json=/here/a.json", "--rounds=3"], "start --rounds=3"),
        (["first-hour", "--install", "/here", "--max-tokens", "8"], "first-hour --install . --max-tokens 8"),
        (["first-hour", "--install=/here"], "first-hour --install ."),
    ],
)
def test_a_command_has_no_path_of_this_machine(given: list[str], kept: str) -> None:
    """In neither form of a flag."""
    assert f"python -m decodekit bench {kept}" == command_line(["decodekit", "bench", *given])


class TestFinish:
    def test_a_plot(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Equal curves give equal files; the table is printed."""
        for name in ("a.svg", "b.svg"):
            finish(a_report(), tmp_path / "toy.json", tmp_path / name)

        assert "How long is a piece of string?" in capsys.readouterr().out
        assert b"<svg" in (tmp_path / "a.svg").read_bytes()
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()

    def test_matplotlib_absent(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The missing package is named, and the report is kept."""
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        finish(a_report(), tmp_path / "toy.json", tmp_path / "toy.svg")

        assert "No plot: a plot needs matplotlib" in capsys.readouterr().out
        assert ["toy.json"] == [path.name for path in tmp_path.iterdir()]
