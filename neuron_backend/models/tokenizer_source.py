"""The tokenizer beside a model: in its folder, its GGUF file or its repository."""

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .gguf_file import is_gguf
from .gguf_tokenizer import load_gguf_tokenizer
from .model_source import is_on_hub, without_remote_code
from .saved_folder import NAME

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""Names of files of which a tokenizer with a vocabulary has at least one."""

_CONFIG = "tokenizer_config.json"
"""Name of the file that suffices for a tokenizer of bytes."""

_GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names of the class of tokenizers that are as their file says, in transformers 4 and 5."""


def load_tokenizer(
    source: str | PathLike[str], *, revision: str | None = None, token: str | bool | None = None
) -> "PreTrainedTokenizerBase | None":
    """
    Load the tokenizer that belongs to the model in *source*.

    Args:
        source: A folder, a GGUF file or a hub id.

        revision: As of :func:`~.model_source.is_on_hub`; a folder and a file have none.

        token: Likewise.

    Returns:
        None if there is none. transformers itself makes up a tokenizer without a vocabulary for some models.

    Raises:
        OSError: Files of the tokenizer cannot be read.

        ValueError: They do not make a tokenizer, or need code of their own.

        ImportError: It needs a package that is not installed.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(source)
    if path.is_file() and is_gguf(source):
        return load_gguf_tokenizer(path)
    folder = path.is_dir()
    of_hub: dict[str, Any] = {"revision": revision, "token": token}

    def has(name: str) -> bool:
        return (path / name).is_file() if folder else is_on_hub(str(source), name, **of_hub)

    has_vocabulary = any(map(has, _VOCABULARIES))
    if not has_vocabulary and not has(_CONFIG):
        return None
    try:
        with without_remote_code(source):
            kind: Any = AutoTokenizer
            if folder and has(NAME) and _class_name(path) in _GENERAL:
                # For some models, such as Qwen2, the other would make a tokenizer as the model's usually are.
                kind = PreTrainedTokenizerFast
            found: PreTrainedTokenizerBase = kind.from_pretrained(
                str(source), trust_remote_code=False, **of_hub
            )
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:
        # transformers takes what it reads on trust, and tokenizers has no error of its own.
        raise ValueError(f"the files of a tokenizer must be as they were saved: got {source}") from error
    # Made up: added tokens, and the word boundary of some.
    if not has_vocabulary and found.is_fast and len(found) <= len(found.added_tokens_decoder) + 1:
        return None
    return found


def _class_name(folder: Path) -> Any:
    """What the tokenizer's config in *folder* says of its class; None if there is none."""
    file = folder / _CONFIG
    return json.loads(file.read_text(encoding="utf-8")).get("tokenizer_class") if file.is_file() else None
