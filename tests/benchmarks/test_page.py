"""The benchmarks' page, from stored reports."""

import argparse
from pathlib import Path

import pytest

from decodekit.benchmarks import page
from decodekit.benchmarks.command_line import GROUPS, benchmark_named
from decodekit.benchmarks.measuring.report import Curves, Report, Threshold
from decodekit.benchmarks.measuring.tables import Table


def stored(folder: Path, name: str, *thresholds: Threshold, curves: Curves | None = None) -> None:
    """A stored report."""
    Report(
        benchmark=name,
        question=f"What about {name}?",
        settings={"rounds": 3},
        tables=[Table("Figures", ("what", "ms"), [("this", 1.5)])],
        thresholds=thresholds,
        notes=["Absent: a peer."],
        curves=curves,
        machine={"device": "abacus"},
        versions={"Python": "3"},
        date="yesterday",
        command=f"python -m decodekit bench {name}",
    ).write(folder / f"{name}.json")


class TestPage:
    def test_a_section(self, tmp_path: Path) -> None:
        """Question, command, machine, versions, date, table and notes of each stored report."""
        stored(tmp_path, "weights")
        page.write(tmp_path, tmp_path / "page.md", {})
        text = (tmp_path / "page.md").read_text()

        assert text.endswith(
            "## weights\n\nWhat about weights?\n\n```\npython -m decodekit bench weights\n```\n\n"
            "- abacus\n- Python 3\n- rounds 3\n- yesterday\n\n"
            "**Figures**\n\n| what | ms |\n| --- | ---: |\n| this | 1.5 |\n\n- Absent: a peer.\n"
        )

    def test_goals(self, tmp_path: Path) -> None:
        """Met, missed with and without a reason; a reason for a met goal is not shown."""
        thresholds = [
            Threshold(what, value, "<=", 1.0, "×") for what, value in (("a", 0.5), ("b", 2.0), ("c", 3.0))
        ]
        stored(tmp_path, "decode", *thresholds)
        page.write(tmp_path, tmp_path / "page.md", {"decode": {"a": "slow", "b": "the cache"}})
        lines = (tmp_path / "page.md").read_text().splitlines()

        assert "| [decode](#decode) | a | 0.5× | <= 1× | met |" in lines
        assert "| [decode](#decode) | b | 2× | <= 1× | **not met**: the cache |" in lines
        assert "| [decode](#decode) | c | 3× | <= 1× | **not met**: no reason is given |" in lines

    @pytest.mark.parametrize("reasons", [{"decode": {"z": "?"}}, {"other": {"a": "?"}}])
    def test_a_reason_for_no_goal_is_refused(
        self, reasons: dict[str, dict[str, str]], tmp_path: Path
    ) -> None:
        """A reason without a goal is refused; the existing page is unchanged."""
        stored(tmp_path, "decode", Threshold("a", 2.0, "<=", 1.0))
        (tmp_path / "page.md").write_text("before")
        with pytest.raises(ValueError, match="'reasons' must be for goals that there are"):
            page.write(tmp_path, tmp_path / "page.md", reasons)

        assert "before" == (tmp_path / "page.md").read_text()

    def test_a_reason_for_a_report_that_is_absent(self, tmp_path: Path) -> None:
        """It waits until that benchmark is measured, here or on another machine."""
        stored(tmp_path, "decode", Threshold("a", 2.0, "<=", 1.0))
        page.write(tmp_path, tmp_path / "page.md", {"weights": {"z": "?"}, "decode-zen5": {"z": "?"}})

        assert "## decode" in (tmp_path / "page.md").read_text()

    def test_order_and_pictures(self, tmp_path: Path) -> None:
        """In the order of the runs, each followed by those of other machines; plots beside the JSON."""
        for name in (
            "weights",
            "another",
            "columns-int8",
            "columns-zen5",
            "columns",
            "columns-int8-zen5",
            "decode",
        ):
            stored(tmp_path, name)
        stored(tmp_path, "positions", curves=Curves("Curve", "x", "y", {"a": [[0.0, 1.0]]}))
        page.write(tmp_path, tmp_path / "page.md", {})
        text = (tmp_path / "page.md").read_text()
        headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]

        assert [
            "Goals",
            "decode",
            "positions",
            "columns",
            "columns-zen5",
            "columns-int8",
            "columns-int8-zen5",
            "weights",
            "another",
        ] == headings
        assert "![Curve](benchmarks/positions.svg)" in text
        assert (tmp_path / "positions.svg").exists()


TOY = """
import argparse, pathlib
from decodekit.benchmarks.measuring.report import Report, finish
from decodekit.benchmarks.measuring.tables import Table

parser = argparse.ArgumentParser()
parser.add_argument("name", choices=["bad", "toy"])
parser.add_argument("--rounds", type=int)
parser.add_argument("--cache")
parser.add_argument("--json", type=pathlib.Path)
args = parser.parse_args()
if args.name == "bad":
    raise SystemExit(2)
settings = {"rounds": args.rounds, "cache": args.cache}
finish(Report(benchmark="toy", question="?", settings=settings, tables=[Table("t", ("a",), [])]), args.json)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """Replacement of ``-m decodekit bench``."""
    (tmp_path / "toy.py").write_text(TOY)
    return [str(tmp_path / "toy.py")]


class TestMeasure:
    @pytest.mark.parametrize(("quick", "rounds"), [(True, 1), (False, 7)])
    def test_a_run_leaves_its_report(
        self, quick: bool, rounds: int, program: list[str], tmp_path: Path
    ) -> None:
        """With the full or quick options, and the supported shared flags."""
        run = page.Run("toy", ("toy",), ("--rounds", "7"), ("--rounds", "1"), ("cache",))
        shared = {"cache": "here", "peer-python": None}
        failed = page.measure([run], quick, shared, tmp_path / "new", program)

        assert [] == failed
        assert {"rounds": rounds, "cache": "here"} == Report.read(tmp_path / "new" / "toy.json").settings

    def test_failures_are_named_and_the_others_run(self, program: list[str], tmp_path: Path) -> None:
        """A failing benchmark, and an unknown one."""
        runs = [page.Run(name, (name,), ("--rounds", "7")) for name in ("bad", "missing", "toy")]

        assert ["bad", "missing"] == page.measure(runs, False, {}, tmp_path, program)
        assert (tmp_path / "toy.json").exists()


def parsed(*arguments: str) -> argparse.Namespace:
    """Options of the command."""
    parser = argparse.ArgumentParser()
    page.add_arguments(parser)
    return parser.parse_args(arguments)


def test_quick_figures_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a temporary folder, with its page; reasons are for goals of the full measurement."""
    folders: list[Path] = []

    def measured(*arguments: object) -> list[str]:
        folder = arguments[3]
        assert isinstance(folder, Path)
        folders.append(folder)
        stored(folder, "processors", Threshold("a", 2.0, "<=", 1.0))
        return []

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "measure", measured)
    monkeypatch.setattr(page.tempfile, "mkdtemp", lambda **_: str(tmp_path / "temporary"))

    assert 0 == page.run(parsed("--quick"))
    assert [tmp_path / "temporary" / "benchmarks"] == folders
    assert (tmp_path / "temporary" / "benchmarks.md").exists()
    assert not (tmp_path / "docs").exists()
    assert 0 == page.run(parsed("--quick", "--results", str(tmp_path / "given")))
    assert (tmp_path / "given.md").exists()


def test_failures_are_printed_before_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if a reason is refused."""
    monkeypatch.setattr(page, "measure", lambda *_: ["decode"])
    monkeypatch.setattr(page, "REASONS", tmp_path / "reasons")
    (tmp_path / "reasons").write_text('{"other": {"a": "?"}}')
    with pytest.raises(ValueError, match="'reasons' must be"):
        page.run(parsed("--results", str(tmp_path), "--page", str(tmp_path / "page.md")))

    assert "failed: decode" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [("--quick",), ("--machine", "zen5")])
def test_write_only_measures_nothing(flag: tuple[str, ...]) -> None:
    """And takes no option of a measurement."""
    with pytest.raises(SystemExit, match=f"{flag[0]} is for what is measured"):
        page.run(parsed("--write-only", *flag))


def test_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--machine`` is part of the reports' names, and changes no command."""
    runs: list[page.Run] = []
    monkeypatch.setattr(page, "measure", lambda found, *_: runs.extend(found) or [])
    parser = argparse.ArgumentParser()
    page.add_arguments(parser)
    arguments = ["--only", "columns-int8", "--machine", "zen5", "--results", str(tmp_path)]
    stored(tmp_path, "columns-int8")
    monkeypatch.setattr(page, "REASONS", tmp_path / "reasons")
    (tmp_path / "reasons").write_text("{}")
    page.run(parser.parse_args([*arguments, "--page", str(tmp_path / "page.md")]))

    assert [("columns-int8-zen5", ("columns", "--weights", "int8"))] == [
        (run.name, run.command) for run in runs
    ]


@pytest.mark.parametrize("word", ["int8", "avx512", "a/b", "", "zen-5"])
def test_a_word_that_would_name_another_run_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its report would be overwritten, or lie elsewhere."""
    parser = argparse.ArgumentParser()
    page.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--machine", word])

    assert "must be letters and digits, and end no benchmark's name" in capsys.readouterr().err


def test_every_run_knows_its_flags() -> None:
    """The parser of each benchmark takes both lengths; all but two can be run for the page."""
    for run in page.RUNS:
        for quick in (True, False):
            shared = {"cache": "c", "peer-python": "p"}
            name, *flags = run.arguments(quick, shared, Path("f.json"))
            assert callable(benchmark_named(name).parser().parse_args(flags).run)

    names = {each.name for group in GROUPS.values() for each in group}
    assert names - {"gpu", "report"} == {run.command[0] for run in page.RUNS}
