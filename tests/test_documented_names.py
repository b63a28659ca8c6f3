"""Every public name is mentioned where users read: in the README or in docs/."""

import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
DOORS = (
    "decoding",
    "neuron_backend",
    "neuron_backend.adapters",
    "pretrained",
    "processors",
    "speculation",
    "streaming",
    "testing",
)
"""The modules that users import names from."""


def names_in(page: str) -> set[str]:
    """The identifiers in the blocks and spans of code of a *page*; its prose has words such as Place too."""
    code = re.findall(r"```.*?```|`[^`\n]+`", page, re.DOTALL)
    return set(re.findall(r"\w+", " ".join(code)))


def test_names_stand_in_code() -> None:
    """In blocks and spans, and not in prose."""
    page = "A Place of `History` and `a.Turn()`.\n```python\nx = Draft(ids)\n```\nA Tree."

    assert {"Draft", "History", "Turn", "a", "ids", "python", "x"} == names_in(page)


@pytest.mark.parametrize("door", DOORS)
def test_every_public_name_is_mentioned(door: str) -> None:
    """As code, so that a reader who searches the pages finds it."""
    mentioned = set().union(*(names_in(page.read_text(encoding="utf-8")) for page in PAGES))

    assert [] == sorted(set(importlib.import_module(f"decodekit.{door}").__all__) - mentioned)
