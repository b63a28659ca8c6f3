"""The guide's examples: a decoder by hand, and beginnings of a text."""

import pathlib
import re
from typing import Any

import pytest
from transformers import AutoTokenizer

from decodekit.decoding import EndOfSequence, Generator, MaxNewTokens
from decodekit.neuron_backend import compile_decoder
from decodekit.testing import check_decoder

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def guide() -> dict[str, Any]:
    """The names of the section's examples, which check the decoder and compare it with transformers."""
    section = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").split("### A decoder by hand")[1]
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]:
        exec(code, names)
    return names


def test_the_decoder_is_checked_and_equals_transformers(guide: dict[str, Any]) -> None:
    """The examples ran, their assertion included."""
    assert guide["generator"]([5, 6, 7]).sequences == guide["expected"].tolist()
    assert 8 + 3 == guide["expected"].shape[1]


def test_a_cache_that_is_only_cropped_is_told_so(guide: dict[str, Any]) -> None:
    """With what was fed, and why the later slots count."""

    class Cropping(guide["DynamicCacheDecoder"]):  # type: ignore[misc]
        def one_row(self, cache: Any, tokens: Any, start: int) -> Any:
            if start < cache.get_seq_length():
                cache.crop(start - cache.get_seq_length())
            return self.model(tokens[None], past_key_values=cache).logits[0]

    decoder = Cropping(guide["model"], batch_size=2, max_length=32)
    with pytest.raises(
        AssertionError, match=r"leaves the slots after its own: all 32 tokens .* cropped .* came"
    ):
        check_decoder(decoder)


@pytest.fixture(scope="module")
def beginnings() -> dict[str, Any]:
    """The names of the section's examples, over the bundled target."""
    section = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").split("## Beginnings of a text")[1]
    names = example_names()
    for code in re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL):
        exec(code, names)
    return names


def example_names() -> dict[str, Any]:
    """The names that the guide's first example defines, over a decoder that compiles nothing."""
    model = ROOT / "examples" / "pair" / "target"
    return {
        "EndOfSequence": EndOfSequence,
        "Generator": Generator,
        "MaxNewTokens": MaxNewTokens,
        "target": compile_decoder(model, target="eager", max_length=128, widths=(1, 16), threads=1),
        "tokenizer": AutoTokenizer.from_pretrained(model),
    }


def test_beginnings_are_as_the_comments_say(beginnings: dict[str, Any]) -> None:
    """The forced text, and the continuation of the prompt as it was written."""
    assert beginnings["forced"]("    def set").text[0].startswith("(self, value")
    assert beginnings["chosen"]("import").text[0] in {" os", " sys", " os.path"}
    with pytest.raises(ValueError, match="must have the tokens of an infilling template"):
        beginnings["infill"](beginnings["chosen"], "def f(", "return x")
    assert beginnings["healing"]("    def __in").text[0].startswith("it__(self")
