"""Tokenizers in GGUF files, against those of transformers' own files."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from decodekit.neuron_backend.models.gguf_tokenizer import load_gguf_tokenizer

from .test_gguf_file import made, write_gguf

pytest.importorskip("gguf")

BYTES = sorted(bytes_to_unicode().values())
MERGES = [
    ("a", "b"),
    ("Ġ", "a"),
    ("1", "2"),
    ("12", "3"),
    ("Ġ", "Ġ"),
    ("Ċ", "Ċ"),
    ("!", "!"),
    ("Ã", "©"),
    ("Ġ", "1"),
]
MERGED = ["".join(pair) for pair in MERGES]
SPECIAL = ["<s>", "</s>", "<|im_end|>"]
TOKENS = [*BYTES, *MERGED, "abab", *SPECIAL]
"""``abab`` is the result of no merge."""

TEXT = "ab ab  123 1234\n\n ab!!! don't x1 12,3 e\u0301 é　a_b  \t 一二3 abab $12=3 <|im_end|> ab  "

SPLIT_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
AS_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def write_tokenizer(path: Path, architecture: str = "llama", pre: str | None = None, **settings: Any) -> Path:
    """Write a tiny model with a tokenizer of bytes."""
    of_tokenizer = {
        "model": "gpt2",
        "token_type": [3 if token in SPECIAL else 1 for token in TOKENS],
        "merges": [" ".join(pair) for pair in MERGES],
        "bos_token_id": TOKENS.index("<s>"),
        "eos_token_id": TOKENS.index("</s>"),
        **({} if pre is None else {"pre": pre}),
        **settings,
    }
    return write_gguf(
        path,
        made(architecture, vocab_size=len(TOKENS)),
        architecture,
        settings={f"tokenizer.ggml.{name}": value for name, value in of_tokenizer.items()},
        tokens=TOKENS,
    )


def pieces(tokenizer: Any, text: str) -> list[str]:
    """The tokens of *text*."""
    return [TOKENS[token] for token in tokenizer(text)["input_ids"]]


def expected(splits: Sequence[Any], text: str) -> list[str]:
    """Those of a tokenizer of bytes with the pre-tokenizer *splits*, special tokens apart."""
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(TOKENS)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(splits))  # type: ignore[assignment]  # its stub
    found: list[str] = []
    for number, part in enumerate(text.split("<|im_end|>")):
        found += ["<|im_end|>"] * (number > 0) + tokenizer.encode(part).tokens
    return found


@pytest.mark.parametrize(
    ("pre", "splits"),
    [
        ("gpt-2", [AS_GPT2]),
        ("smollm", [pre_tokenizers.Digits(individual_digits=True), AS_GPT2]),
        ("starcoder", [pre_tokenizers.Digits(individual_digits=True), AS_GPT2]),
        (
            "falcon",
            [
                pre_tokenizers.Punctuation("contiguous"),
                AS_GPT2,
                pre_tokenizers.Digits(individual_digits=False),
                pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
            ],
        ),
        ("bloom", [pre_tokenizers.Split(Regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"), "isolated"), SPLIT_BYTES]),
        (
            "deepseek-coder",
            [
                pre_tokenizers.Split(Regex("[\r\n]"), "isolated"),
                pre_tokenizers.Split(Regex(r"\s?\p{L}+"), "isolated"),
                pre_tokenizers.Split(Regex(r"\s?\p{P}+"), "isolated"),
                pre_tokenizers.Split(Regex("[一-龥ࠀ-一가-퟿]+"), "isolated"),
                pre_tokenizers.Digits(individual_digits=True),
                SPLIT_BYTES,
            ],
        ),
    ],
)
def test_texts_are_divided_as_in_the_model_s_own_files(pre: str, splits: list[Any], tmp_path: Path) -> None:
    """As the pre-tokenizers in their ``tokenizer.json`` do."""
    path = write_tokenizer(tmp_path / "tiny.gguf", pre=pre)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer = load_gguf_tokenizer(path)

    assert expected(splits, TEXT) == pieces(tokenizer, TEXT)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen_encodes_as_its_own_tokenizer(architecture: str, tmp_path: Path) -> None:
    """Normalised too, from the file and from what is saved with a decoder."""
    tokenizer = load_gguf_tokenizer(write_tokenizer(tmp_path / "tiny.gguf", architecture, "qwen2"))
    own = Qwen2Tokenizer(vocab={token: place for place, token in enumerate(TOKENS)}, merges=MERGES)
    own.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.save_pretrained(tmp_path / "saved")
    made(architecture, vocab_size=len(TOKENS)).config.save_pretrained(tmp_path / "saved")

    assert pieces(own, TEXT) == pieces(tokenizer, TEXT)
    assert pieces(own, TEXT) == pieces(AutoTokenizer.from_pretrained(tmp_path / "saved"), TEXT)


@pytest.mark.parametrize(("said", "begins"), [(None, True), (True, True), (False, False)])
def test_llama_3_begins_texts_unless_the_file_says_no(
    said: bool | None, begins: bool, tmp_path: Path
) -> None:
    """As llama.cpp does, and as Meta's tokenizer; words that are tokens are taken whole."""
    settings = {} if said is None else {"add_bos_token": said}
    tokenizer = load_gguf_tokenizer(write_tokenizer(tmp_path / "tiny.gguf", pre="llama-bpe", **settings))
    tokenizer.save_pretrained(tmp_path / "saved")

    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "saved")):
        assert ["<s>"] * begins + ["abab", "<|im_end|>"] == pieces(each, "abab<|im_end|>")


@pytest.mark.parametrize(
    ("pre", "named"), [(None, "''"), ("default", "'default'"), ("deepseek-llm", "'deepseek-llm'")]
)
def test_an_unknown_division_is_said(pre: str | None, named: str, tmp_path: Path) -> None:
    """Its tokens may be others than the model was trained on."""
    path = write_tokenizer(tmp_path / "tiny.gguf", pre=pre)

    with pytest.warns(
        UserWarning, match=f"how the tokenizer divides texts: got {named} in .*read as 'gpt-2'"
    ):
        tokenizer = load_gguf_tokenizer(path)
    assert expected([AS_GPT2], TEXT) == pieces(tokenizer, TEXT)


def test_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    """The command that joins the parts is named."""
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama", settings={"split.count": 2})

    with pytest.raises(
        ValueError, match=r"must have the whole model: got .*tiny.gguf, one of 2 parts; `llama"
    ):
        load_gguf_tokenizer(path)
