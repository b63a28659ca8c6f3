"""Arguments of the benchmarks of speculation."""

import pytest

from decodekit.__main__ import main


@pytest.mark.parametrize(
    "wrong",
    [
        ["speculation", "--rounds", "0"],
        ["speculation", "--prompts", "0"],
        ["speculation", "--adversarial-tokens", "0"],
        ["speculation", "--batch", "0"],
        ["speculation", "--temp", "-1"],
        ["real-prompts", "--clock-tokens", "0"],
        ["real-prompts", "--of-a-kind", "0"],
        ["real-prompts", "--temps", "0", "nan"],
    ],
)
def test_wrong_arguments(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are refused before a model is read."""
    for module, function in (("speed", "models"), ("real_prompts", "_decoder")):
        monkeypatch.setattr(f"decodekit.benchmarks.speculation.{module}.{function}", None)

    assert 1 == main(["bench", *wrong])
    assert f"'{wrong[1][2:].replace('-', '_')}' must be" in capsys.readouterr().err
