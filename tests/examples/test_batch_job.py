"""The batch job's options, and its actor in this process; with Ray see tests/streaming/test_ray_serve.py."""

import argparse
import importlib.util
import pathlib
import sys
from types import ModuleType

import pytest

from decodekit.decoding import Generator, Greedy, MaxNewTokens
from decodekit.neuron_backend import compile_decoder

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "batch_job.py"
DRAFT = str(ROOT / "examples" / "pair" / "draft")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "decodekit[ray]"'
)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("batch_job", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("full",), "the output must be a new or an empty folder: got full"),
        (("prompts",), "the output must be a new or an empty folder: got prompts"),
        (("new", "--temp", "-1"), "--temp must be at least 0 and finite: got -1.0"),
        (("new", "--temp", "nan"), "--temp must be at least 0 and finite: got nan"),
        (("new", "--temp", "inf"), "--temp must be at least 0 and finite: got inf"),
    ],
)
def test_what_is_wrong_is_refused_before_ray_starts(
    options: tuple[str, ...],
    expected: str,
    example: ModuleType,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ray would add a second run's files to those of the first; actors would compile before they refuse."""

    def started(*args: object) -> None:
        raise AssertionError

    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").write_text('{"prompt": "def f("}\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "0.json").touch()
    monkeypatch.setattr(example.ray.data, "from_items", started)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "prompts", *options, "--model", DRAFT])

    with pytest.raises(SystemExit) as ended:
        example.main()

    assert 2 == ended.value.code
    assert expected in capsys.readouterr().err


def test_a_temperature_of_0_is_greedy(example: ModuleType) -> None:
    """As of the commands."""
    options = argparse.Namespace(
        model=DRAFT, batch_size=2, max_length=128, target="eager", temp=0.0, seed=0, max_tokens=8
    )
    prompts = ["def main(", "import "]
    decoder = compile_decoder(DRAFT, batch_size=2, max_length=128, widths=(1, 64), target="eager")
    complete = example.Complete(options)
    generator = Generator(
        decoder, sampler=Greedy(), stop=MaxNewTokens(8), tokenizer=complete.generator.tokenizer
    )

    completed = complete({"prompt": prompts, "number": [3, 4]})

    assert generator(prompts).text == completed["completion"]
