"""The programs of the migration page."""

import pathlib
import re
import runpy
import sys
import tempfile

import pytest

from decodekit.decoding import Generator, MaxNewTokens

from ..hub_stand_in import running_hub

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "migration"
FILES = sorted(path.name for path in FOLDER.glob("*.py"))
MARK = "# --- shown in docs/migration.md\n"

GREEDY = {
    "neuronx_ngram.py",
    "neuronx_save.py",
    "neuronx_speculation.py",
    "neuronx_stopping.py",
    "neuronx_streamer.py",
    "optimum_pipeline.py",
    "optimum_save_and_push.py",
}
"""Those that print the greedy continuation of one prompt."""


@pytest.fixture(scope="module")
def continuation() -> str:
    """The greedy continuation of their prompt, as far as all of them print it."""
    model = ROOT / "examples" / "pair" / "target"
    generator = Generator.from_pretrained(
        model, max_length=64, widths=(1, 16), stop=MaxNewTokens(20), target="eager"
    )
    text = generator("def main(").text
    assert text is not None
    return text[0]


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("name", FILES)
def test_runs(
    name: str,
    continuation: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the bundled pair; the text is that of plain decoding where it is greedy."""
    monkeypatch.setattr(sys, "argv", [name, "eager"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    runpy.run_path(str(FOLDER / name), run_name="__main__")

    out = capsys.readouterr().out
    assert out.strip()
    assert (continuation in out) == (name in GREEDY)


@pytest.mark.slow
def test_pushes(
    continuation: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """To a hub, from which the generator is loaded again."""
    monkeypatch.setattr(sys, "argv", ["optimum_save_and_push.py", "eager", "you/name"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with running_hub(monkeypatch, tmp_path / "hub") as hub:
        runpy.run_path(str(FOLDER / "optimum_save_and_push.py"), run_name="__main__")

        assert "decoder.json" in hub.files("you/name")
    assert continuation in capsys.readouterr().out


def test_the_page_shows_every_program() -> None:
    """As it is, from its mark on; and no other Python under "Here"."""
    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")

    for name in FILES:
        assert f"```python\n{(FOLDER / name).read_text(encoding='utf-8').split(MARK)[1]}```" in page, name
    assert FILES == sorted(re.findall(r"Here \(\[`(.*?)`\]", page))


def test_links_of_the_page_lead_somewhere() -> None:
    """Files exist, and so do the headings that are linked to."""
    page = ROOT / "docs" / "migration.md"
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        found = page.parent / file if file else page

        assert found.exists(), target
        assert not anchor or anchor in anchors(found.read_text(encoding="utf-8")), target


def anchors(text: str) -> set[str]:
    """GitHub's anchors of the headings of *text*."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_target_is_an_argument() -> None:
    """Every program can be given one, and takes what the machine has by default."""
    for name in FILES:
        assert 'TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"' in (FOLDER / name).read_text()
