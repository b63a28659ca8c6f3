"""The guide's decoder by hand, its sessions, its strategies and its beginnings of a text."""

import json
import pathlib
import re
from typing import Any

import pytest
from transformers import AutoTokenizer

from decodekit.decoding import EndOfSequence, Generator, MaxNewTokens, Session
from decodekit.neuron_backend import compile_decoder
from decodekit.testing import check_decoder

from .decoding.serving.test_session import generator

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
            return self.model(tokens[None], cache=cache).logits[0]

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


def test_the_example_of_sessions(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs as it is written, over a small tokenizer."""
    monkeypatch.chdir(tmp_path)
    section = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").split("\n## Sessions\n")[1]
    names: dict[str, Any] = {"Session": Session, "generator": generator()}

    exec(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], names)

    assert [1, 2] == [len(names[name].turns) for name in ("session", "other")]
    assert names["session"].turns[0].ids == names["other"].turns[0].ids
    reused, rewritten = re.findall(r"(\d+) (\d+)\n", capsys.readouterr().out)[0]
    assert int(reused) > 0 == int(rewritten)


def test_generate_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples run: the model's own greedy text, beams, the pipeline, and a generator's in its place."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    section = text.split("## transformers' `generate()`\n")[1].split("\n## ")[0]
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(code, names)
    greedy = names["stock"].generate(**names["inputs"], max_new_tokens=24, do_sample=False)
    beams = names["stock"].generate(**names["inputs"], max_new_tokens=24, num_beams=2)

    assert greedy.tolist() == names["greedy"].tolist() == names["same"].tolist() == names["fast"].tolist()
    assert beams.tolist() == names["beams"].tolist()
    assert names["text"].startswith("def add(a, b):")


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


def test_the_stream_of_a_batcher_serves_several_clients() -> None:
    """The example of server-sent events, over the bundled model, not compiled."""
    pytest.importorskip("starlette", reason='not installed: pip install "decodekit[serve]"')
    pytest.importorskip("httpx")
    from starlette.testclient import TestClient

    section = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").split("**Server-sent events.**")[1]
    model = str(ROOT / "examples" / "pair" / "target")
    target = compile_decoder(model, target="eager", batch_size=2, max_length=64)
    tokenizer = AutoTokenizer.from_pretrained(model)
    own = Generator(target, stop=MaxNewTokens(5), tokenizer=tokenizer)
    names: dict[str, Any] = {"target": target, "generator": own}
    exec(
        "from decodekit.decoding import Batcher\nfrom decodekit.streaming import async_server_sent_events",
        names,
    )
    exec(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], names)
    prompts = ["def add(a, b):", "class Stack:"]
    with TestClient(names["app"]) as client:
        answers = [client.post("/stream", json={"prompt": prompt}) for prompt in prompts]

    assert [200, 200] == [answer.status_code for answer in answers]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(each) for each in re.findall(r"^data: (\{.*\})$", answer.text, re.MULTILINE)]
        assert own(prompt).text[0] == "".join(event.get("text", "") for event in events)
