"""Held-out prompts of the bundled pair."""

import pytest

from decodekit.benchmarks.models import bundled_pair


def test_fewer_windows_than_asked_for_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error; nothing is said where there are enough."""
    texts = ["def one(two):\n    return three\n" * 100]
    monkeypatch.setattr(bundled_pair.runpy, "run_path", lambda _: {"held_out": lambda: texts})
    found = bundled_pair.held_out_prompts(1)
    assert "" == capsys.readouterr().err
    every = bundled_pair.held_out_prompts(1000)

    assert found == every[:1]
    assert f"{len(every)} held-out prompts, of 1000 asked for" in capsys.readouterr().err
