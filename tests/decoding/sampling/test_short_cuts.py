"""The registry of short cuts."""

import pathlib
import sys

import pytest

from decodekit.decoding.sampling import short_cuts
from decodekit.decoding.sampling.short_cuts import register, register_module, short_cuts_of


class Part:
    """A processor, for the registry."""


class Derived(Part):
    """Another class."""


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing registered here stays."""
    monkeypatch.setattr(short_cuts, "_makers", dict(short_cuts._makers))
    monkeypatch.setattr(short_cuts, "_modules", {})


def test_are_made_from_the_part() -> None:
    """One object for each part."""
    register(Part, lambda part: ["of", part])
    part = Part()

    assert ["of", part] == short_cuts_of(part)


def test_are_those_of_the_exact_type() -> None:
    """A subclass has none, and functions have none."""
    register(Part, lambda part: "its own")

    assert short_cuts_of(Derived()) is None
    assert short_cuts_of(lambda logits, history: logits) is None


def test_a_module_is_imported_at_the_first_look_up(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; not when it is registered."""
    (tmp_path / "cuts_of_a_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    register_module("cuts_of_a_test")

    assert "cuts_of_a_test" not in sys.modules
    assert short_cuts_of(Part()) is None
    assert "cuts_of_a_test" in sys.modules
    assert {} == short_cuts._modules


def test_a_missing_module_has_none() -> None:
    """The toolkit works without its short cuts."""
    register_module("decodekit.processors.not_there")

    assert short_cuts_of(Part()) is None


def test_a_broken_module_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot import something else is not missing: each look-up says so."""
    (tmp_path / "broken_cuts_of_a_test.py").write_text("import not_there_either\n")
    monkeypatch.syspath_prepend(tmp_path)
    register_module("broken_cuts_of_a_test")

    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="not_there_either"):
            short_cuts_of(Part())
