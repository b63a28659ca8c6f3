"""The guide's example of beams."""

import pathlib
import re
from functools import partial
from typing import Any

from transformers import AutoTokenizer

from decodekit import decoding, processors
from decodekit.neuron_backend import compile_decoder

ROOT = pathlib.Path(__file__).parents[4]
PAIR = str(ROOT / "examples" / "pair" / "target")


def test_the_example_runs() -> None:
    """And gives as many texts as it says."""
    section = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").split("### Beams\n")[1]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    names: dict[str, Any] = {
        "compile_decoder": partial(compile_decoder, target="eager", progress=False),
        "tokenizer": AutoTokenizer.from_pretrained(PAIR),
        "model": PAIR,
        "MaxNewTokens": decoding.MaxNewTokens,
        "BeamSearch": decoding.BeamSearch,
        "StochasticBeams": decoding.StochasticBeams,
        "Temperature": processors.Temperature,
    }
    # The samples are long.
    exec(code.replace("seed=7", "seed=7, stop=MaxNewTokens(6)"), names)
    best, drawn = names["best"], names["drawn"]

    assert [0, 0, 1, 1] == best.prompt_index
    assert all(map(str.strip, best.text))
    assert 8 == len(set(drawn.text))
