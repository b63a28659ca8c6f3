"""The README's example and its printed output agree."""

import pathlib
import re
import subprocess
import sys

import pytest

from decodekit.pretrained import ModelUnavailable, fetch_smollm2

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.real
@pytest.mark.slow
def test_the_example_prints_the_output_below_it() -> None:
    """Run as pasted, from the root of a clone; the number of forwards depends on the time that they take."""
    try:
        fetch_smollm2()
    except ModelUnavailable as error:
        pytest.skip(str(error))
    readme = (ROOT / "README.md").read_text()
    code, output = re.findall(r"```(?:python|text)\n(.*?)```", readme, re.DOTALL)[:2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    )

    assert without_forwards(output) == without_forwards(done.stdout)


def without_forwards(text: str) -> str:
    """*text* without the number of forwards."""
    return re.sub(r"in \d+ forwards", "in some forwards", text)
