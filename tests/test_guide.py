"""The guide's decoder by hand, and its strategies."""

import pathlib
import re
from typing import Any

import pytest
from transformers import AutoTokenizer

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


@pytest.mark.parametrize("section", ["Guidance and ensembles", "Choosing among samples"])
def test_strategies_run(section: str) -> None:
    """The examples of guidance, ensembles and samples, over the bundled model, not compiled."""
    names: dict[str, Any] = {}
    exec("from decodekit.decoding import *\nfrom decodekit.speculation import *", names)

    def eager(model: Any, **options: Any) -> Any:
        return compile_decoder(model, target="eager", **options)

    model = str(ROOT / "examples" / "pair" / "target")
    names |= {"compile_decoder": eager, "model": model, "tokenizer": AutoTokenizer.from_pretrained(model)}
    names["target"] = eager(model, batch_size=4, max_length=256, widths=(1, 5, 16))
    text = (
        (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").split(f"### {section}")[1].split("\n## ")[0]
    )
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    exec(code, names)

    if section == "Choosing among samples":
        assert 4 == len(names["choice"].candidates)
        assert names["choice"].chosen.text == names["result"].text[0]
        assert 1 == len(names["last"].text)
    else:
        assert 2 == names["guided"].shape.batch_size
