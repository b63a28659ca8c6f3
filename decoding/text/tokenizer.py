"""Tokenizers: what is needed of one, and how it decodes."""

import json
from typing import Any, Protocol

from .per_tokenizer import PerTokenizer


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer, fast or slow, that detokenization needs."""

    def decode(self, token_ids: list[int], /, **options: Any) -> Any:
        """Text of ids."""
        ...

    def convert_ids_to_tokens(self, ids: int, /) -> Any:
        """The vocabulary's spelling of one id, or None if it has none."""
        ...


def decode_ids(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool) -> str:
    """The text of *ids*, spaces not cleaned up."""
    if not ids:
        return ""
    text: str = tokenizer.decode(
        ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    return text


def is_byte_level(tokenizer: Any) -> bool:
    """Whether each token of *tokenizer* is a byte string, spelled as in :data:`~.token_pieces.BYTE_OF`."""
    return decoder_steps(tokenizer) == ["ByteLevel"]


def decoder_steps(tokenizer: Any) -> list[str]:
    """The decoder types that the tokenizers library applies, in order; empty if they cannot be known."""
    # Imported late: a caller with a tokenizer has loaded transformers already.
    from transformers import PreTrainedTokenizerFast as Fast

    family = type(tokenizer)
    # Some classes (Whisper, CodeGen) rework what the library decodes.
    if any(getattr(family, name, None) is not getattr(Fast, name) for name in ("decode", "_decode")):
        return []
    decoder = tokenizer.backend_tokenizer.decoder
    try:
        state = json.loads(decoder.__getstate__())
    except Exception:  # no decoder at all, or one written in Python, which cannot be pickled
        return []
    return [part["type"] for part in state.get("decoders", [state])]


def special_tokens(tokenizer: Any) -> frozenset[str]:
    """
    The spellings of the special tokens of *tokenizer*; empty if it is not a Hugging Face tokenizer.

    Cached per tokenizer.
    """
    return _SPECIAL_TOKENS.of(tokenizer)


def _special_tokens(tokenizer: Any) -> frozenset[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    spelled = {token.content for token in added.values() if token.special}
    return frozenset({*spelled, *getattr(tokenizer, "all_special_tokens", ())} - {""})


_SPECIAL_TOKENS = PerTokenizer(_special_tokens)


def common_prefix_length(before: str, text: str) -> int:
    """The number of leading characters that both have in common; usually all of *before*."""
    if text.startswith(before):
        return len(before)
    pairs = enumerate(zip(before, text, strict=False))
    return next((i for i, (one, other) in pairs if one != other), len(text))
