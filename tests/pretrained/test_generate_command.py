"""``python -m decodekit generate``: prompts, drafts, samples, JSON and saved decoders."""

import argparse
import io
import json
import pathlib
import re
import shutil

import attrs
import pytest
from transformers import AutoModelForCausalLM

from decodekit.__main__ import main
from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.pretrained import command_decoders, command_generator, kept_decoders

DRAFT = pathlib.Path(__file__).parents[2] / "examples" / "pair" / "draft"
PROMPT = "def read(path):"
EAGER = ("--target", "eager", "--max-length", "128", "--dtype", "float64")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def run(
    capsys: pytest.CaptureFixture[str], *arguments: str, model: pathlib.Path = DRAFT
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    status = main(["generate", "--model", str(model), "--max-tokens", "16", *arguments])
    return status, *capsys.readouterr()


@pytest.fixture
def with_template(tmp_path: pathlib.Path) -> pathlib.Path:
    """The bundled draft model, with a chat template."""
    folder = pathlib.Path(shutil.copytree(DRAFT, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_prompts_of_files_and_of_standard_input(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They give the text of the prompt itself, without their final newline."""
    file = tmp_path / "prompt.txt"
    file.write_text(f"{PROMPT}\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PROMPT}\n"))

    texts = [run(capsys, "--prompt", prompt, *EAGER)[1] for prompt in (PROMPT, f"@{file}", "-")]

    assert texts[0].startswith(PROMPT)
    assert [texts[0]] * 3 == texts


def test_line_ends_of_windows(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file and standard input give one prompt."""
    data, file = b"def a():\r\n    b = 1\r\n", tmp_path / "prompt.txt"
    file.write_bytes(data)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="\n"))

    texts = [run(capsys, "--prompt", prompt, *EAGER)[1] for prompt in (f"@{file}", "-")]

    assert texts[0].startswith("def a():\n    b = 1")
    assert texts[0] == texts[1]


def test_a_prompt_that_is_no_text(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused by its flag."""
    file = tmp_path / "prompt.bin"
    file.write_bytes(b"\xff\xfe")

    status, _, err = run(capsys, "--prompt", f"@{file}", *EAGER)

    assert (1, True) == (status, f"--prompt must be UTF-8: got @{file}" in err)


@pytest.mark.parametrize("flag", ["--prompt", "--system", "--stop"])
def test_an_argument_that_is_no_text(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the shell passes on bytes that are not UTF-8: refused by its flag before a model is loaded."""
    monkeypatch.setattr(kept_decoders, "compile_decoder", None)
    status, out, err = run(capsys, *(() if flag == "--prompt" else ("--prompt", PROMPT)), flag, "caf\udce9")

    assert (1, "", True) == (status, out, f"{flag} must be UTF-8: got" in err)


def test_a_draft_of_another_vocabulary(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a tokenizer it is refused before a model is loaded."""
    draft = pathlib.Path(shutil.copytree(DRAFT, tmp_path / "draft"))
    for file in draft.glob("tokenizer*"):
        file.unlink()
    config = json.loads((draft / "config.json").read_text())
    own = config["vocab_size"]
    (draft / "config.json").write_text(json.dumps(config | {"vocab_size": own + 8}))
    monkeypatch.setattr(kept_decoders, "compile_decoder", None)
    status, _, err = run(capsys, "--prompt", PROMPT, *EAGER, "--draft", str(draft))

    assert 1 == status
    assert f"--draft must have a tokenizer, or the vocabulary of --model, {own} ids: got {draft}" in err
    assert f"without a tokenizer and with {own + 8} ids" in err


def test_a_draft_whose_vocabulary_is_padded(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As those of Qwen2.5 are, by size of the model: it drafts the tokens that both have."""
    model = AutoModelForCausalLM.from_pretrained(DRAFT)
    model.resize_token_embeddings(model.config.vocab_size + 8, mean_resizing=False)
    draft = pathlib.Path(shutil.copytree(DRAFT, tmp_path / "draft"))
    model.save_pretrained(draft)
    plain = run(capsys, "--prompt", PROMPT, *EAGER)[1]
    status, text, err = run(capsys, "--prompt", PROMPT, *EAGER, "--draft", str(draft), "--compare")

    assert (0, plain) == (status, text)
    assert "--draft has another vocabulary than --model: it drafts the tokens that both have" in err
    assert float(re.search(r"([\d.]+) tokens per forward", err)[1]) > 2


def test_a_draft_with_the_same_number_of_other_ids(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ids are not taken for those of the target."""
    draft = pathlib.Path(shutil.copytree(DRAFT, tmp_path / "draft"))
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["d"], vocabulary["e"] = vocabulary["e"], vocabulary["d"]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    status, text, err = run(capsys, "--prompt", PROMPT, *EAGER, "--draft", str(draft))

    assert 0 == status
    assert "--draft has another vocabulary" in err
    assert run(capsys, "--prompt", PROMPT, *EAGER)[1] == text


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_drafts_change_nothing(temperature: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of whatever kind, with a length that is fixed or adapts."""
    common = ["--prompt", PROMPT, "--temp", temperature, *EAGER]
    common += ["--seed", "5"] if temperature != "0" else []
    kinds = (
        [],
        ["--draft", "lookup"],
        ["--draft", "suffix", "--num-draft-tokens", "3"],
        ["--draft", str(DRAFT)],
    )

    texts = {run(capsys, *common, *kind)[1] for kind in kinds}

    assert 1 == len(texts)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object; its seed gives the same samples again, which differ from each other."""
    arguments = ["--prompt", PROMPT, "--json", "--num-samples", "2", "--temp", "1.5", *EAGER]
    status, out, _ = run(capsys, *arguments)
    found = json.loads(out)
    _, again, _ = run(capsys, *arguments, "--seed", str(found["seed"]))

    assert 0 == status
    assert {"model", "prompt_tokens", "samples", "seed", "statistics"} == set(found)
    assert found["samples"] == json.loads(again)["samples"]
    assert found["samples"][0]["ids"] != found["samples"][1]["ids"]
    assert all({"text", "ids", "finish_reason"} == set(sample) for sample in found["samples"])
    assert sum(len(sample["ids"]) for sample in found["samples"]) == found["statistics"]["tokens"]


def test_samples_are_printed_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    """With their numbers."""
    _, out, err = run(capsys, "--prompt", PROMPT, "--num-samples", "2", "--temp", "1", "--quiet", *EAGER)

    assert ["--- 1 of 2", "--- 2 of 2"] == [line for line in out.splitlines() if line.startswith("---")]
    assert 2 == out.count(PROMPT)
    assert "tokens/s" not in err


def test_a_chat(with_template: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The prompt is a message in the template, which is not printed."""
    plain = run(capsys, "--prompt", "<user>x<a>", *EAGER, model=with_template)[1]
    chat = run(capsys, "--prompt", "x", "--chat", *EAGER, model=with_template)[1]
    system = run(capsys, "--prompt", "x", "--system", "y", "--json", *EAGER, model=with_template)[1]

    assert plain == f"<user>x<a>{chat}"
    # Two messages of a character each.
    assert json.loads(system)["prompt_tokens"] > 2


def test_a_model_without_a_template(capsys: pytest.CaptureFixture[str]) -> None:
    """It is told."""
    status, _, err = run(capsys, "--prompt", "x", "--chat", *EAGER)

    assert (1, True) == (status, "chat template" in err)


def test_saved_decoders(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are loaded as they are, with their tokenizer; what they have may be repeated, not changed."""
    widths = {"widths": (1, 5, 32), "scored_width": 5, "max_length": 128}
    compile_decoder(DRAFT, target="eager", dtype="float64", **widths).save(tmp_path / "saved")
    saved = {"model": tmp_path / "saved"}
    expected = run(capsys, "--prompt", PROMPT, *EAGER)[1]

    assert expected == run(capsys, "--prompt", PROMPT, **saved)[1]
    assert expected == run(capsys, "--prompt", PROMPT, "--draft", "suffix", **saved)[1]
    same = ["--target", "eager", "--dtype", "float64", "--max-length", "128", "--widths", "1", "5", "32"]
    assert expected == run(capsys, "--prompt", PROMPT, *same, **saved)[1]
    assert expected == run(capsys, "--prompt", PROMPT, "--target", "auto", **saved)[1]
    for flags, message in [
        (["--dtype", "float32"], "saved decoder with float64"),
        (["--weights", "int8"], "--weights cannot be changed: --model"),
        (["--max-length", "64"], "--max-length cannot be changed: --model"),
        (["--temp", "1", "--num-samples", "2"], "--num-samples must be at most 1, the rows of --model"),
        (["--draft", "lookup", "--num-draft-tokens", "7"], "score at least 8 columns: --model"),
    ]:
        status, _, err = run(capsys, "--prompt", PROMPT, *flags, **saved)
        assert (1, True) == (status, message in err), err


def test_threads_of_saved_decoders(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not saved, and may be chosen."""
    compile_decoder(DRAFT, target="eager", dtype="float64", widths=(1, 5, 32), max_length=128).save(tmp_path)
    seen, load = [], command_decoders.load_decoder
    monkeypatch.setattr(
        command_decoders, "load_decoder", lambda *source, **how: seen.append(load(*source, **how)) or seen[-1]
    )
    flags = ("--prompt", PROMPT, "--draft", str(tmp_path), "--threads", "1")

    assert 0 == run(capsys, *flags, model=tmp_path)[0]
    assert [1, 1] == [decoder.threads for decoder in seen]


def test_a_draft_for_a_saved_decoder_of_several_rows(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets as many; a saved one of fewer is refused before anything is loaded."""
    options = {"target": "eager", "dtype": "float64", "widths": (1, 5, 32), "max_length": 128}
    for rows, name in ((1, "one"), (2, "two")):
        compile_decoder(DRAFT, batch_size=rows, **options).save(tmp_path / name)
    expected = run(capsys, "--prompt", PROMPT, *EAGER)[1]

    for draft in (str(DRAFT), str(tmp_path / "two")):
        assert expected == run(capsys, "--prompt", PROMPT, "--draft", draft, model=tmp_path / "two")[1]
    monkeypatch.setattr(command_decoders, "load_decoder", None)
    drafted = ("--prompt", PROMPT, "--draft", str(tmp_path / "one"))
    status, _, err = run(capsys, *drafted, model=tmp_path / "two")
    assert 1 == status
    assert f"--draft must have at least 2 rows, those of --model: {tmp_path / 'one'} has 1" in err


def test_a_saved_draft_has_widths_of_its_own(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--widths`` are the model's; other options are of both."""
    compile_decoder(DRAFT, target="eager", dtype="float64", widths=(1, 2, 32), max_length=128).save(tmp_path)
    draft = ("--prompt", PROMPT, "--draft", str(tmp_path), "--widths", "1", "5", "64")

    assert run(capsys, "--prompt", PROMPT, *EAGER)[1] == run(capsys, *draft, *EAGER)[1]
    assert "--dtype cannot be changed: --draft" in run(capsys, *draft, "--dtype", "float32")[2]


@pytest.mark.parametrize("target", ["neuron-native", "neuron-traced"])
def test_a_saved_decoder_for_neuron_is_named_as_it_was_compiled(
    target: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``neuron`` is what the installed packages offer."""
    compile_decoder(DRAFT, target="eager", widths=(1,), max_length=16).save(tmp_path)
    saved = attrs.evolve(Manifest.read(tmp_path), target=target)
    monkeypatch.setattr(command_decoders, "_manifest", lambda _: saved)

    def check(named: str) -> None:
        options = dict.fromkeys(("dtype", "weights", "max_length", "widths"))
        command_decoders.check_source(argparse.Namespace(**options, target=named), str(tmp_path), "--model")

    for named in ("neuron", target, "auto"):
        check(named)
    with pytest.raises(ValueError, match=f"--target cannot be changed: .* with {target}"):
        check("cpu")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--widths", "4", "2"], "--widths must be at least 1, and ascending: got 4 2"),
        (["--widths", "0", "2"], "--widths must be at least 1, and ascending: got 0 2"),
        (
            ["--draft", "lookup", "--widths", "1", "64"],
            "--widths must have one from 2 to 9, for drafts: got 1 64",
        ),
        (
            ["--draft", "lookup", "--num-draft-tokens", "3", "--widths", "1", "5"],
            "--widths must have 4, for 3 draft tokens: got 1 5",
        ),
        (
            ["--max-length", "32", "--widths", "1", "64"],
            "--widths must be at most --max-length, 32: got 1 64",
        ),
        (
            ["--max-length", "4", "--draft", "lookup", "--num-draft-tokens", "4"],
            "--max-length must be at least 5, for 4 draft tokens: got 4",
        ),
        (
            ["--max-length", "100000"],
            "examples/pair/draft: 'max_length' must be <= ",
        ),
        (["--chat"], "a chat must have a tokenizer with a chat template"),
        (["--prompt", "x " * 500], "--prompt must have at most 128 tokens (--max-length): got "),
        (["--prompt", "@nowhere"], "--prompt must name a file that can be read: got @nowhere"),
        (
            ["--draft", "lookpu"],
            "--draft, if neither lookup nor suffix, must be a folder, or the id of a model on the hub: got "
            "'lookpu'",
        ),
        (["--model", "nowhere"], "--model must be a folder, or the id of a model on the hub: got 'nowhere'"),
    ],
)
def test_flags_that_do_not_fit(
    flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are refused before a model is loaded."""
    monkeypatch.setattr(kept_decoders, "compile_decoder", None)
    status, out, err = run(capsys, "--prompt", PROMPT, *EAGER, *flags)

    assert (1, "", True) == (status, out, message in err), err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temp", "1", "--num-samples", "2"], "--num-samples must be at most 1, the rows of --model"),
        (["--draft", "lookup", "--num-draft-tokens", "7"], "score at least 8 columns: --model"),
    ],
)
def test_what_a_saved_decoder_cannot_do_is_said_before_it_is_loaded(
    flags: list[str],
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its shape is in a file of its own."""
    compile_decoder(DRAFT, target="eager", max_length=64, widths=(1, 5)).save(tmp_path / "saved")
    monkeypatch.setattr(command_decoders, "load_decoder", None)
    status, _, err = run(capsys, "--prompt", PROMPT, *flags, model=tmp_path / "saved")

    assert (1, True) == (status, message in err), err


def test_drafts_in_a_short_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """They are as long as it allows."""
    short = ("--target", "eager", "--max-length", "8", "--dtype", "float64")
    plain = run(capsys, "--prompt", "x", *short)[:2]

    assert plain == run(capsys, "--prompt", "x", *short, "--draft", "lookup")[:2]


@pytest.mark.parametrize("draft", [(), ("--draft", "lookup"), ("--draft", "model")], ids=str)
def test_a_model_of_few_positions(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], draft: tuple[str, ...]
) -> None:
    """Our own widths are cut; those that are given are refused."""
    folder = pathlib.Path(shutil.copytree(DRAFT, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
    flags = [str(folder) if flag == "model" else flag for flag in draft]
    given = ["--prompt", "def", "--target", "eager", "--max-tokens", "4", *flags]

    assert run(capsys, *given, model=folder)[0] == 0
    status, _, err = run(capsys, *given, "--widths", "1", "2", "3", "5", "9", "33", model=folder)
    assert (status, "must be <= max_length = 32" in err) == (1, True)


def test_flags_that_change_nothing_are_said(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is the same."""
    compile_decoder(DRAFT, target="eager", dtype="float64", max_length=128).save(tmp_path / "saved")
    expected = run(capsys, "--prompt", PROMPT, *EAGER)[1]
    cache = ("--cache", str(tmp_path / "cache"))
    for flags, model, message in [
        (("--top-k", "3", *EAGER), DRAFT, "--top-k, --top-p and --min-p change nothing at --temp 0"),
        ((*cache, *EAGER), DRAFT, "--cache changes nothing at --target eager, which compiles nothing"),
        (cache, tmp_path / "saved", "--cache changes nothing for saved decoders"),
    ]:
        status, text, err = run(capsys, "--prompt", PROMPT, *flags, model=model)
        assert (0, expected, True) == (status, text, f"decodekit: {message}\n" in err), err


@pytest.mark.parametrize("flag", ["--stream", "--no-stream", "--json"])
def test_an_encoding_that_lacks_a_character(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends well; JSON loses nothing."""
    expected = json.loads(run(capsys, "--prompt", "é 👩", *EAGER, "--json")[1])
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    model = ["--model", str(DRAFT), "--max-tokens", "16"]
    assert 0 == main(["generate", *model, "--prompt", "é 👩", *EAGER, flag])
    out.seek(0)
    text = out.read()

    if flag == "--json":
        assert expected["samples"] == json.loads(text)["samples"]
    else:
        assert text.startswith("? ?")


def test_a_missing_compiler_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: pathlib.Path,
) -> None:
    """The text is an eager decoder's."""
    monkeypatch.setattr("decodekit.neuron_backend.targets.cpu.toolchain.has_compiler", lambda: False)
    common = ("--prompt", PROMPT, "--max-length", "128", "--dtype", "float64", "--cache", str(tmp_path))
    status, text, _ = run(capsys, *common)

    assert 1 == caplog.text.count("compiling needs a C++ compiler")
    assert (status, text) == run(capsys, *common, "--target", "eager")[:2]


def test_a_kept_decoder_of_a_gguf_file_brings_its_tokenizer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file, which is a folder here, is not read for it."""
    expected = run(capsys, "--prompt", PROMPT, *EAGER)[1]
    kept = compile_decoder(DRAFT, target="eager", max_length=128, dtype="float64", widths=(1, 64))
    monkeypatch.setattr(command_generator, "is_gguf", lambda source: True)
    monkeypatch.setattr(command_generator, "load_tokenizer", None)
    monkeypatch.setattr(command_decoders, "load_kept", lambda folder, arguments: kept)

    assert expected == run(capsys, "--prompt", PROMPT, *EAGER)[1]


def test_widths(capsys: pytest.CaptureFixture[str]) -> None:
    """They bound the draft length, and change no text."""
    plain = run(capsys, "--prompt", PROMPT, *EAGER)[1]

    assert (
        plain == run(capsys, "--prompt", PROMPT, *EAGER, "--draft", "suffix", "--widths", "1", "3", "64")[1]
    )
    assert plain == run(capsys, "--prompt", PROMPT, *EAGER, "--widths", "4", "64")[1]
