"""The page of benchmarks, from what they stored."""

import argparse
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from decodekit.bench.report import Bar, Curves, Report, Table


@pytest.fixture(scope="module")
def script_report(script: Callable[[str], ModuleType]) -> ModuleType:
    """The script under test."""
    return script("report")


def stored(folder: Path, name: str, *bars: Bar, curves: Curves | None = None) -> None:
    """A report as a benchmark leaves it."""
    Report(
        benchmark=name,
        question=f"What about {name}?",
        settings={"rounds": 3},
        tables=[Table("Figures", ("what", "ms"), [("this", 1.5)])],
        bars=bars,
        notes=["Absent: a peer."],
        curves=curves,
        machine={"device": "abacus"},
        versions={"Python": "3"},
        date="yesterday",
        command=f"python benchmarks/{name}.py",
    ).write(folder / f"{name}.json")


class TestPage:
    def test_a_section(self, script_report: ModuleType, tmp_path: Path) -> None:
        """Question, command, machine, versions, date, table and notes of each that is there."""
        stored(tmp_path, "weights")
        script_report.write(tmp_path, tmp_path / "page.md", {})
        text = (tmp_path / "page.md").read_text()

        assert text.endswith(
            "## weights\n\nWhat about weights?\n\n```\npython benchmarks/weights.py\n```\n\n"
            "- abacus\n- Python 3\n- rounds 3\n- yesterday\n\n"
            "**Figures**\n\n| what | ms |\n| --- | ---: |\n| this | 1.5 |\n\n- Absent: a peer.\n"
        )

    def test_goals(self, script_report: ModuleType, tmp_path: Path) -> None:
        """Met, missed with its reason, missed without one; a reason for what is met is not told."""
        bars = [Bar(what, value, "<=", 1.0, "×") for what, value in (("a", 0.5), ("b", 2.0), ("c", 3.0))]
        stored(tmp_path, "decode", *bars)
        script_report.write(tmp_path, tmp_path / "page.md", {"decode": {"a": "slow", "b": "the cache"}})
        lines = (tmp_path / "page.md").read_text().splitlines()

        assert "| [decode](#decode) | a | 0.5× | <= 1× | met |" in lines
        assert "| [decode](#decode) | b | 2× | <= 1× | **not met**: the cache |" in lines
        assert "| [decode](#decode) | c | 3× | <= 1× | **not met**: no reason is given |" in lines

    @pytest.mark.parametrize("reasons", [{"decode": {"z": "?"}}, {"other": {"a": "?"}}])
    def test_a_reason_for_no_goal_is_refused(
        self, reasons: dict[str, dict[str, str]], script_report: ModuleType, tmp_path: Path
    ) -> None:
        """It would be lost; the page that was there stays."""
        stored(tmp_path, "decode", Bar("a", 2.0, "<=", 1.0))
        (tmp_path / "page.md").write_text("before")
        with pytest.raises(ValueError, match="'reasons' must be for goals that there are"):
            script_report.write(tmp_path, tmp_path / "page.md", reasons)

        assert "before" == (tmp_path / "page.md").read_text()

    def test_order_and_pictures(self, script_report: ModuleType, tmp_path: Path) -> None:
        """As the benchmarks are run, others behind them; curves beside their JSON."""
        for name in ("weights", "another", "decode"):
            stored(tmp_path, name)
        stored(tmp_path, "positions", curves=Curves("Curve", "x", "y", {"a": [[0.0, 1.0]]}))
        script_report.write(tmp_path, tmp_path / "page.md", {})
        text = (tmp_path / "page.md").read_text()
        headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]

        assert ["Goals", "decode", "positions", "weights", "another"] == headings
        assert "![Curve](benchmarks/positions.svg)" in text
        assert (tmp_path / "positions.svg").exists()


TOY = """
import argparse, pathlib
from decodekit.bench.report import Report, Table, finish

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int)
parser.add_argument("--cache")
parser.add_argument("--json", type=pathlib.Path)
args = parser.parse_args()
settings = {"rounds": args.rounds, "cache": args.cache}
finish(Report(benchmark="toy", question="?", settings=settings, tables=[Table("t", ("a",), [])]), args.json)
"""


def options(**changes: object) -> argparse.Namespace:
    """The script's own flags."""
    return argparse.Namespace(**{"quick": False, "cache": None, "peer_python": None, **changes})


class TestMeasure:
    @pytest.mark.parametrize(("quick", "rounds"), [(True, 1), (False, 7)])
    def test_a_run_leaves_its_report(
        self, quick: bool, rounds: int, script_report: ModuleType, tmp_path: Path
    ) -> None:
        """With the arguments of its length, and the shared flags that it takes."""
        (tmp_path / "toy.py").write_text(TOY)
        command = (str(tmp_path / "toy.py"),)
        run = script_report.Run("toy", command, ("--rounds", "7"), ("--rounds", "1"), ("cache",))
        failed = script_report.measure([run], options(quick=quick, cache="here"), tmp_path / "new")

        assert [] == failed
        assert {"rounds": rounds, "cache": "here"} == Report.read(tmp_path / "new" / "toy.json").settings

    def test_failures_are_named_and_the_others_run(self, script_report: ModuleType, tmp_path: Path) -> None:
        """One that fails, and one that is not there."""
        (tmp_path / "toy.py").write_text(TOY)
        (tmp_path / "bad.py").write_text("raise SystemExit(2)")
        runs = [
            script_report.Run(name, (str(tmp_path / f"{name}.py"),), ("--rounds", "7"))
            for name in ("bad", "missing", "toy")
        ]

        assert ["bad", "missing"] == script_report.measure(runs, options(), tmp_path)
        assert (tmp_path / "toy.json").exists()


def test_every_run_knows_its_flags(script_report: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those that decodekit itself carries out: their parser takes both lengths of each."""
    from decodekit.__main__ import _parser

    ours = [run for run in script_report.RUNS if run.script is None]
    for run in ours:
        for quick in (True, False):
            flags = run.arguments(options(quick=quick, cache="c", peer_python="p"), Path("f.json"))
            assert callable(_parser().parse_args(flags[2:]).command)

    assert ["decode", "positions", "start", "latency", "throughput"] == [run.name for run in ours]
