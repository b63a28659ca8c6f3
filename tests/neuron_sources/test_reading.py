"""How checkouts are found and read; needs none."""

import ast
from pathlib import Path

import pytest

from . import checkouts
from .checkouts import CHECKOUTS, NXDI
from .facts import Fact, chooses, has, lacks, takes
from .source import take

SOURCE = """
def f(self, a, b):
    if a > 1:
        self.one()
    elif b:
        self.two()
    else:
        self.three()
"""


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (has("a > 1", "self.two()"), True),
        (has("a > 1", "self.four()"), False),
        (takes("a"), True),
        (takes("b"), False),
        (lacks("c"), True),
        (lacks("b"), False),
        (chooses(("a > 1", "one"), ("b", "two"), (None, "three")), True),
        (chooses(("b", "two"), (None, "three")), True),
        (chooses(("a > 1", "two")), False),
        (chooses(("b", "two"), ("a > 1", "one")), False),
        (chooses((None, "one")), False),
        (chooses(("a > 1", "one"), ("b", "two"), ("c", "three")), False),
    ],
)
def test_a_check_can_fail(check, holds: bool) -> None:
    """Conditions, what each branch uses, and their order."""
    (function,) = ast.parse(SOURCE).body

    assert holds == check(function)


def test_a_fact_is_looked_for_in_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the same name elsewhere says nothing."""
    (tmp_path / "file.py").write_text("class A:\n    def f(self): return 1\n\ndef f(): return 2\n")
    monkeypatch.setenv(NXDI.variable, str(tmp_path))

    assert Fact(NXDI, "file.py", "A.f", "", has("1")).holds()
    assert not Fact(NXDI, "file.py", "A.f", "", has("2")).holds()
    assert not Fact(NXDI, "file.py", "A.g", "", has("1")).holds()


def test_definitions_are_taken_alone(tmp_path: Path) -> None:
    """Nothing else of the file runs, and annotations are not evaluated."""
    path = tmp_path / "file.py"
    path.write_text("import nothing\nONE = two\ndef f(x: Unknown): return x + ONE\n")

    assert 5 == take(path, "f", "ONE", two=2).f(3)
    with pytest.raises(LookupError, match=r"does not define \['g'\]"):
        take(path, "f", "g")


def test_absent_checkouts_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 3 if any is absent: tests that did not run are no success."""
    for checkout in CHECKOUTS:
        monkeypatch.setenv(checkout.variable, str(tmp_path))
    assert 0 == checkouts.main()
    assert "" == capsys.readouterr().err

    monkeypatch.delenv(NXDI.variable)
    monkeypatch.setenv("DECODEKIT_VLLM_NEURON", str(tmp_path / "none"))

    assert 3 == checkouts.main()
    lines = capsys.readouterr().err.splitlines()
    assert ["NxD Inference is absent", "vLLM Neuron is absent"] == [line.split(":")[0] for line in lines]
