"""The README's example and its printed output agree."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def test_the_example_prints_the_output_below_it() -> None:
    """Run as pasted, from the root of a clone."""
    readme = (ROOT / "README.md").read_text()
    code, output = re.findall(r"```(?:python|text)\n(.*?)```", readme, re.DOTALL)[:2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )

    assert output == done.stdout
