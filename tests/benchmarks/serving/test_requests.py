"""The goals of the serving benchmark."""

import pytest

from decodekit.__main__ import main
from decodekit.benchmarks.serving import requests
from decodekit.benchmarks.serving.requests import Measured, goals
from decodekit.benchmarks.serving.workload import Served


def served(rate: float, gap: float = 100.0) -> Served:
    """Figures of a run."""
    return Served(rate, (1.0, 2.0, 3.0), (10.0, 50.0, gap))


def test_goals() -> None:
    """Ratios at equal rows, of one row, of transformers, and of the bound asked for."""
    found = [
        Measured("decodekit", 1, (served(50),), served(40)),
        Measured("decodekit, drafts by lookup", 1, (served(60),), served(40, 120)),
        Measured("decodekit", 8, (served(200),), served(100, 200)),
        Measured("decodekit, drafts by lookup", 8, (served(210),), served(100)),
        Measured("llama-server", 8, (served(100),), served(90)),
    ]

    assert [2.0, 4.0, 10.0, 1.0, 1.2, 2.0, 1.0] == [each.value for each in goals(found, 20.0, 0.1)]
    assert [True, True, True, True, True, False, True] == [each.met for each in goals(found, 20.0, 0.1)]


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (["--llama-server", __file__], "'llama_server' and 'llama_model' must be given together"),
        (["--llama-model", __file__], "'llama_server' and 'llama_model' must be given together"),
        (["--llama-server", __file__, "--llama-model", "none.gguf"], "'llama_model' must be a file"),
        (["--llama-server", "none", "--llama-model", __file__], "'llama_server' must be a file"),
    ],
)
def test_a_server_needs_its_files(
    given: list[str], rule: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a decoder is compiled."""
    monkeypatch.setattr(requests, "_decoder", None)

    assert 1 == main(["bench", "serving", *given])
    assert rule in capsys.readouterr().err
