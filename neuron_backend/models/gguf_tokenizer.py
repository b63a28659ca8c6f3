"""
The tokenizer in a GGUF file, with what transformers' loader leaves out.

How texts are divided, and which begin with a token, is that of llama.cpp's ``src/llama-vocab.cpp``.
"""

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .gguf_header import read_header

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("gpt-2", "phi-2", "gigachat", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion"), (_GPT2,)
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
        (r"\p{N}", _GPT2),
    ),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open"), (_QWEN2,)),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (r" ?[^(\s|.,!?…。，、।۔،)]+",)),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
}
"""Expressions that divide a text one after the other, by pre-tokenizer; transformers 5.24 knows others."""

_LLAMA3 = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
"""Those whose texts begin with a token unless the file says no, and whose words are taken whole."""

_NORMALISED = {"qwen2", "deepseek-r1-qwen"}
"""Those of text in normal form C, which transformers' own tokenizer of these models makes."""


def load_gguf_tokenizer(path: str | PathLike[str]) -> "PreTrainedTokenizerBase":
    """
    Load the tokenizer in a GGUF file, with its chat template.

    Raises:
        ValueError: The file is a part of a model, or has no tokenizer that can be read.

    Warns:
        UserWarning: It does not say how its tokenizer divides texts, or names a way that is not known. (Not
            with transformers before 5.24, which goes by the model's type.)
    """
    # Imported here: it takes seconds.
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    file = Path(path).absolute()
    settings = read_header(file).settings
    # Not by the class for the model's type, which adds tokens of its own; but before transformers 5 only that
    # begins texts with a token.
    kind: Any = (
        PreTrainedTokenizerFast if hasattr(PreTrainedTokenizerFast, "add_bos_token") else AutoTokenizer
    )
    tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(str(file.parent), gguf_file=str(file))
    if settings.get("tokenizer.ggml.model") == "gpt2":
        _complete(tokenizer, settings, file)
    return tokenizer


def _complete(tokenizer: Any, settings: Mapping[str, Any], file: Path) -> None:
    """Set how *tokenizer*, of bytes, divides texts, and which token they begin with."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    name = settings.get("tokenizer.ggml.pre", "")
    if name in _SPLITS:
        splits = (pre_tokenizers.Split(Regex(each), "isolated") for each in _SPLITS[name])
        of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, of_bytes])
    elif name not in _known_to_transformers(name):
        warnings.warn(
            f"tokenizer.ggml.pre should name how the tokenizer divides texts: got {name!r} in {file}, which "
            "is read as 'gpt-2', so its tokens may be others than the model's (tokenizer= takes the model's)",
            stacklevel=3,
        )
    if name in _NORMALISED:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    if name in _LLAMA3:
        tokenizer.backend_tokenizer.model.ignore_merges = True
        if "tokenizer.ggml.add_bos_token" not in settings:
            tokenizer.add_bos_token = True


def _known_to_transformers(name: str) -> Sequence[str]:
    """Pre-tokenizers by which transformers divides texts; older versions go by the model's type: *name*."""
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:
        return (name,)
    return tuple(GGUF_PRE_TOKENIZER_SPLITS)
