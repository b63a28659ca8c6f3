"""
Random texts in twelve scripts, tokenizers of every family trained on them, and chunks of ids.

Tests of streamed text take their cases from :func:`cases`: the streamed pieces must add up to
:attr:`Case.text`.
"""

import base64
import functools
import itertools
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.ctrl.tokenization_ctrl import CTRLTokenizer

from decodekit.decoding.text.token_pieces import BYTE_OF
from decodekit.decoding.text.utf8 import open_from

try:
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy
except ImportError:  # before transformers 5
    from transformers import BertTokenizer as BertTokenizerLegacy

SCRIPTS = {
    "latin": "The quick brown fox, it's said, jumps over 13 lazy dogs! Žluťoučký kůň, e\u0301a\u0302o\u0323?",
    "cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю. и\u0306 е\u0308",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. α\u0313\u0301",
    "arabic": "نص حكيم له سر قاطع وذو شأن عظيم بِسْمِ ٱللَّٰهِ ، ؟",
    "hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה בְּרֵאשִׁית",
    "devanagari": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण क्ष्म्य हिंदी ।",
    "thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ที่นี่ น้ำ",
    "hangul": "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "kana": "いろはにほへと ちりぬるを ワカヨタレソ ツネナラム か\u3099は\u309a 、。",
    "han": "天地玄黃 宇宙洪荒 日月盈昃 辰宿列張 我能吞下玻璃而不伤身体 𠮷 𡃁",
    "emoji": "👩‍👩‍👧‍👦 waves 👋🏽 at 🇯🇵🇰🇷 and 🏳️‍🌈 ❤️ 1️⃣ 🧑🏿‍🚀 ok",
    "code": "def f(x):\n        return [i ** 2 for i in range(x)]  # \t!\n\nif (a!=b) { s += '\\u00e9'; }",
}
"""A line or two per script with its difficult cases: combining marks, joiners, four-byte characters."""

SPECIALS = ["<s>", "</s>", "<|a b|>"]
ODD = ["\ufffd", "  ", "\n\n", "\x00", "<é>", " x y ", "a literal \ufffd\ufffd.", *SPECIALS]
"""Separators between words, for any script."""


def random_text(rng: random.Random, script: str) -> str:
    """Random words and pieces of words of a script, with occasional odd separators."""
    words = SCRIPTS[script].split(" ")
    parts = []
    for _ in range(rng.randint(1, 9)):
        kind, word = rng.random(), rng.choice(words)
        if kind < 0.1:
            parts.append(rng.choice(ODD))
        elif kind < 0.3:
            start = rng.randrange(len(word) + 1)
            parts.append(word[start : start + rng.randint(1, 3)])
        else:
            parts.append(word)
    return rng.choice(["", " "]).join(parts) if rng.random() < 0.3 else " ".join(parts)


# Tokenizers, trained quickly.


def _wrapped(backend: Tokenizer, kind: type = PreTrainedTokenizerFast, clean_up: bool = False) -> Any:
    backend.add_special_tokens(SPECIALS)
    # One in the byte alphabet, one half outside of it, one with spaces, one that looks like a piece.
    backend.add_tokens(["<é>", "<日 é>", AddedToken(" x y ", normalized=False), "Ġ!"])
    return kind(tokenizer_object=backend, clean_up_tokenization_spaces=clean_up, unk_token="<unk>")


def _lines(scripts: tuple[str, ...] = tuple(SCRIPTS)) -> list[str]:
    return [SCRIPTS[script] for script in scripts] + ["▁▁ \ufffd"]


def _byte_level_backend() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(_lines(), trainer)
    return backend


class _Reworked(PreTrainedTokenizerFast):
    """Overrides ``decode``, as Whisper's and CodeGen's do."""

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        return super().decode(*args, **kwargs)


def _ranks() -> dict[bytes, int]:
    """The tokens of a byte-level vocabulary as bytes, in the order in which they were merged."""
    vocabulary = sorted(_byte_level_backend().get_vocab().items(), key=lambda item: item[1])
    return {bytes(BYTE_OF[c] for c in token): rank for rank, (token, _) in enumerate(vocabulary)}


class _Converter(TikTokenConverter):
    """Reads the file without the tiktoken package."""

    @staticmethod
    def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
        lines = Path(tiktoken_url).read_text().splitlines()
        return {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}


def _tiktoken() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tiny.tiktoken")
        file.write_text(
            "\n".join(f"{base64.b64encode(token).decode()} {rank}" for token, rank in _ranks().items())
        )
        return _wrapped(_Converter(str(file)).converted())


class Bare:
    """Minimal tokenizer, ids to bytes, like tiktoken's own encodings."""

    def __init__(self) -> None:
        self.tokens = list(_ranks())
        self.ids = {token: index for index, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, **options: Any) -> list[int]:
        """Greedy longest match."""
        data, ids = text.encode(), []
        while data:
            size = next(n for n in range(min(len(data), 12), 0, -1) if data[:n] in self.ids)
            ids.append(self.ids[data[:size]])
            data = data[size:]
        return ids

    def decode(self, token_ids: list[int], **options: Any) -> str:
        """Decode the bytes as UTF-8."""
        return b"".join(self.tokens[i] for i in token_ids).decode(errors="replace")

    def convert_ids_to_tokens(self, index: int) -> bytes | None:
        """Bytes of one id."""
        return self.tokens[index] if index < len(self.tokens) else None


def _unigram(vocab_size: int) -> Tokenizer:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(_lines(), trainer)
    return backend


# Trained on few scripts: all others use byte tokens.
_FEW = ("latin", "code", "greek")
_BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def _unigram_of_bytes(decoder: decoders.Decoder) -> Tokenizer:
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(_lines(_FEW), trainer)
    pieces = [(trained.id_to_token(i), -5.0) for i in range(trained.get_vocab_size())]
    pieces += [(token, -20.0) for token in _BYTE_TOKENS]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoder
    return backend


def _bpe_of_bytes(decoder: decoders.Decoder) -> Tokenizer:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    specials = ["<unk>", *_BYTE_TOKENS]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    trained.train_from_iterator(_lines(_FEW), trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    backend = Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoder
    return backend


def _llama() -> decoders.Decoder:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


def _gemma() -> decoders.Decoder:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def _word_piece(decoder: decoders.Decoder) -> Tokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoder
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(_lines(), trainer)
    return backend


def _slow_word_piece() -> Any:
    backend = _word_piece(decoders.WordPiece())
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "vocab.txt")
        file.write_text("\n".join([*tokens, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]), encoding="utf-8")
        tokenizer = BertTokenizerLegacy(str(file), do_lower_case=False, clean_up_tokenization_spaces=True)
    tokenizer.add_tokens(SPECIALS, special_tokens=True)
    return tokenizer


def _slow_word_parts() -> Any:
    """CTRL's: ``@@`` marks a word that continues."""
    letters = sorted(set("".join(_lines())) - {" ", "\n", "\t"})
    tokens = ["<unk>", *letters, *(f"{letter}@@" for letter in letters), "wave@@", "range"]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocabulary.write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
        merges.write_text("#version: 0.2\nw a\n", encoding="utf-8")
        tokenizer = CTRLTokenizer(str(vocabulary), str(merges))
    tokenizer.add_tokens(SPECIALS, special_tokens=True)
    return tokenizer


def _word_end_bpe(decoder: decoders.Decoder | None) -> Tokenizer:
    backend = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        backend.decoder = decoder
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(_lines(), trainer)
    return backend


_MAKERS = {
    "byte-level": lambda: _wrapped(_byte_level_backend()),
    "byte-level-reworked": lambda: _wrapped(_byte_level_backend(), _Reworked),
    "tiktoken": _tiktoken,
    "bare": Bare,
    "bpe-byte-fallback": lambda: _wrapped(_bpe_of_bytes(_llama())),
    "unigram-byte-fallback": lambda: _wrapped(_unigram_of_bytes(_gemma())),
    "unigram": lambda: _wrapped(_unigram(500)),
    "word-piece": lambda: _wrapped(_word_piece(decoders.WordPiece())),
    "word-piece-cleaned": lambda: _wrapped(_word_piece(decoders.WordPiece(cleanup=False)), clean_up=True),
    "bpe-word-end": lambda: _wrapped(_word_end_bpe(decoders.BPEDecoder())),
    "no-decoder": lambda: _wrapped(_word_end_bpe(None)),
    "slow-bytes": ByT5Tokenizer,
    "slow-word-piece": _slow_word_piece,
    "slow-word-parts": _slow_word_parts,
}
FAMILIES = tuple(_MAKERS)


@functools.cache
def tokenizer_of(family: str) -> Any:
    """The tokenizer of a family."""
    return _MAKERS[family]()


def decoded(tokenizer: Any, ids: list[int], skip_special_tokens: bool = True) -> str:
    """Expected concatenation of a streamer's text."""
    return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens) if ids else ""


def whole_characters(tokenizer: Any, ids: list[int], skip: bool) -> str:
    """Decode *ids*, without an incomplete character at the end."""
    skipped = {i for i in ids if not decoded(tokenizer, [i], skip) and decoded(tokenizer, [i], False)}
    ids = [i for i in ids if i not in skipped and tokenizer.convert_ids_to_tokens(i) is not None]
    tokens = [tokenizer.convert_ids_to_tokens(i) for i in ids]
    run = list(itertools.takewhile(lambda token: str(token).startswith("<0x"), reversed(tokens)))
    data = bytes(int(token[3:5], 16) for token in reversed(run))
    return decoded(tokenizer, ids[: len(ids) - len(data) + open_from(data)], skip).rstrip("\ufffd")


# Cases.


@attrs.frozen(eq=False)
class Case:
    """A text to be streamed in chunks, with one family of tokenizers."""

    script: str
    family: str
    ids: list[int]
    sizes: list[int]
    skip_special_tokens: bool

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the family."""
        return tokenizer_of(self.family)

    @property
    def text(self) -> str:
        """Expected concatenation of the streamed text."""
        return decoded(self.tokenizer, self.ids, self.skip_special_tokens)

    def chunks(self) -> Iterator[list[int]]:
        """Yield the ids, 1 to 8 at a time."""
        start = 0
        for size in self.sizes:
            yield self.ids[start : start + size]
            start += size


def cases(count: int, seed: int = 0, families: tuple[str, ...] = FAMILIES) -> Iterator[Case]:
    """Random texts, cycling through scripts and families; reproducible by seed."""
    rng = random.Random(seed)
    for number in range(count):
        script = list(SCRIPTS)[number % len(SCRIPTS)]
        family = rng.choice(families)
        text = random_text(rng, script)
        ids = tokenizer_of(family).encode(text, add_special_tokens=False)
        most, sizes = rng.randint(1, 8), []
        while sum(sizes) < len(ids):
            sizes.append(rng.randint(1, most))
        yield Case(script, family, ids, sizes, rng.random() < 0.5)
