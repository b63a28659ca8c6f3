"""Whatever the tokenizer and the bursts, the pieces join to the decode of all ids."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from decodekit.decoding.text import Detokenizer

SENTENCES = [
    "The quick brown fox, it's said, jumps over 13 lazy dogs.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "키스의 고유조건은 입술끼리 만나야 하고",
    "いろはにほへと ちりぬるを 我が世誰ぞ常ならむ",
    "👩‍👩‍👧‍👦 waves 👋🏽 at 🇯🇵 and 🏳️‍🌈",
    "def f(x):\n        return [i ** 2 for i in range(x)]  # \t!",
    "გთხოვთ ახლავე გაიაროთ რეგისტრაცია",
    "a literal \ufffd, and \ufffd\ufffd",
]
SPECIALS = ["<s>", "</s>", "<|a b|>"]


def wrapped(backend: Tokenizer, kind: type = PreTrainedTokenizerFast) -> Any:
    backend.add_special_tokens(SPECIALS)
    # One in the byte alphabet, one half outside of it, one with spaces, one that looks like a piece.
    backend.add_tokens(["<é>", "<日 é>", AddedToken(" x y ", normalized=False), "Ġ!"])
    return kind(tokenizer_object=backend, clean_up_tokenization_spaces=False, unk_token="<unk>")


def byte_level_backend() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    return backend


class Reworked(PreTrainedTokenizerFast):
    """Decodes by a method of its own, as Whisper's and CodeGen's do."""

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        return super().decode(*args, **kwargs)


def unigram(vocab_size: int) -> Tokenizer:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(SENTENCES, trainer)
    return backend


def with_byte_fallback(decoder: decoders.Decoder) -> Tokenizer:
    # Trained on ASCII: all other scripts go through bytes.
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator([s for s in SENTENCES if s.isascii()] + ["▁▁ \ufffd"], trainer)
    pieces = [(trained.id_to_token(i), -5.0) for i in range(trained.get_vocab_size())]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoder
    return backend


def word_piece(decoder: decoders.Decoder) -> Tokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoder
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    return backend


def word_end_bpe(decoder: decoders.Decoder | None) -> Tokenizer:
    backend = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        backend.decoder = decoder
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(SENTENCES, trainer)
    return backend


def llama() -> decoders.Decoder:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


def gemma() -> decoders.Decoder:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


MAKERS = {
    "byte-level": lambda: wrapped(byte_level_backend()),
    "byte-level-reworked": lambda: wrapped(byte_level_backend(), Reworked),
    "unigram-byte-fallback-llama": lambda: wrapped(with_byte_fallback(llama())),
    "unigram-byte-fallback-gemma": lambda: wrapped(with_byte_fallback(gemma())),
    "unigram-metaspace": lambda: wrapped(unigram(400)),
    "word-piece": lambda: wrapped(word_piece(decoders.WordPiece())),
    "bpe-word-end": lambda: wrapped(word_end_bpe(decoders.BPEDecoder())),
    "no-decoder": lambda: wrapped(word_end_bpe(None)),
    "byt5-slow": lambda: ByT5Tokenizer(),
}
FAMILIES = list(MAKERS)
BYTE_RUNS = [family for family in FAMILIES if "fallback" in family]


@functools.cache
def tokenizer_of(family: str) -> Any:
    return MAKERS[family]()


def whole(tokenizer: Any, ids: list[int], skip: bool = True) -> str:
    return tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False) if ids else ""


def bursts(ids: list[int], sizes: list[int]) -> Iterator[list[int]]:
    start = 0
    while start < len(ids):
        size = sizes[start % len(sizes)]
        yield ids[start : start + size]
        start += size


def agreement(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def pieces(tokenizer: Any, ids: list[int], sizes: list[int], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(burst) for burst in bursts(ids, sizes)), detokenizer.flush()]


SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=5)
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(SENTENCES),
        st.sampled_from(["\ufffd", "  ", "\n", *SPECIALS, "<é>", " x y ", "👩‍👩‍👧‍👦", "é́", "\x00"]),
        st.text(max_size=8),
    ),
    max_size=6,
).map("".join)


@st.composite
def any_ids(draw: st.DrawFn, family: str) -> list[int]:
    """Ids of any tokens, with stretches of single bytes, and some that no token has."""
    tokenizer = tokenizer_of(family)
    size = len(tokenizer)
    tokens = [tokenizer.convert_ids_to_tokens(i) for i in range(size)]
    short = [i for i, token in enumerate(tokens) if len(token) == 1 or token.startswith("<0x")]
    specials = [i for i, token in enumerate(tokens) if i in tokenizer.all_special_ids or token in SPECIALS]
    anywhere = st.lists(st.integers(0, size - 1 if family == "byt5-slow" else size + 3), max_size=8)
    stretches = [anywhere, st.lists(st.sampled_from(short), max_size=12)]
    stretches.append(st.lists(st.sampled_from(specials), max_size=12))
    return [index for part in draw(st.lists(st.one_of(stretches), max_size=6)) for index in part]


@pytest.mark.parametrize("family", FAMILIES)
class TestDetokenizer:
    """What holds for every family of tokenizers."""

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_pieces_join_to_the_decode_of_any_ids(self, family: str, data: st.DataObject) -> None:
        """Ids of any kind, malformed bytes included, in any bursts: nothing lost, nothing else."""
        ids, sizes, skip = data.draw(any_ids(family)), data.draw(SIZES), data.draw(st.booleans())

        assert whole(tokenizer_of(family), ids, skip) == "".join(
            pieces(tokenizer_of(family), ids, sizes, skip)
        )

    @settings(max_examples=40, deadline=None)
    @given(text=TEXTS, sizes=SIZES, skip=st.booleans())
    def test_pieces_join_to_the_decode_of_text(
        self, family: str, text: str, sizes: list[int], skip: bool
    ) -> None:
        """Any script, special tokens and literal U+FFFD included."""
        tokenizer = tokenizer_of(family)
        ids = tokenizer.encode(text, add_special_tokens=False)

        assert whole(tokenizer, ids, skip) == "".join(pieces(tokenizer, ids, sizes, skip))

    @pytest.mark.parametrize("sentence", SENTENCES, ids=lambda s: s[:8].encode("unicode_escape").decode())
    def test_no_character_is_split(self, family: str, sentence: str) -> None:
        """After each token, what is out begins the final text and is sound Unicode."""
        tokenizer = tokenizer_of(family)
        ids = tokenizer.encode(sentence, add_special_tokens=False)
        final, shown = whole(tokenizer, ids), ""
        for piece in pieces(tokenizer, ids, [1]):
            shown += piece

            assert final.startswith(shown)
            assert piece == piece.encode().decode()

        assert final == shown

    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_text_comes_as_soon_as_it_is_final(self, family: str, data: st.DataObject) -> None:
        """Held are an unfinished character or run of byte tokens, and nothing else."""
        tokenizer = tokenizer_of(family)
        ids, shown, detokenizer = data.draw(any_ids(family)), "", Detokenizer(tokenizer)
        final = whole(tokenizer, ids)
        for i, index in enumerate(ids):
            shown += detokenizer.push([index])
            now = whole(tokenizer, ids[: i + 1])
            if family not in BYTE_RUNS:
                # One unfinished character, read as U+FFFD. Two of them when Python's decoder waits
                # for the third byte of a surrogate, which cannot become any character.
                unfinished = min(len(now) - len(now.rstrip("\ufffd")), 2)
                assert len(shown) >= agreement(now, final) - unfinished
            elif not (tokenizer.convert_ids_to_tokens(index) or "<0x").startswith(
                ("<0x", "<unk>", *SPECIALS)
            ):
                assert shown == now

    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_peek_is_what_flush_would_give(self, family: str, data: st.DataObject) -> None:
        """At every point; and having looked changes nothing."""
        tokenizer = tokenizer_of(family)
        ids, sizes, skip = data.draw(any_ids(family)), data.draw(SIZES), data.draw(st.booleans())
        looked, plain = Detokenizer(tokenizer, skip), Detokenizer(tokenizer, skip)
        pushed: list[int] = []

        assert looked.peek() == ""
        for burst in bursts(ids, sizes):
            pushed += burst
            other = Detokenizer(tokenizer, skip)
            other.push(pushed)

            assert plain.push(burst) == looked.push(burst)
            assert other.flush() == looked.peek()
        assert plain.flush() == looked.flush()
        assert looked.peek() == ""

    @pytest.mark.parametrize("size", [1, 5])
    def test_cost_is_linear(self, family: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Windows are bounded and few: their lengths add up to a multiple of the ids'."""
        tokenizer = tokenizer_of(family)
        ids = tokenizer.encode(" ".join(SENTENCES) * 3, add_special_tokens=False)
        lengths = self.record(tokenizer, monkeypatch)
        pieces(tokenizer, ids, [size])
        windows = [length for length in lengths if length > 1]

        assert sum(lengths) <= 20 * len(ids) + 20
        assert len(lengths) - len(windows) <= 2 * len(set(ids)) + 4
        if family not in BYTE_RUNS:
            assert max(windows, default=0) <= 16 + size

    @pytest.mark.parametrize("kind", ["short", "special", "unknown", "space"])
    def test_cost_is_linear_when_nothing_is_final(
        self, family: str, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A thousand stray bytes, skipped tokens or silent spaces are not decoded again and again."""
        tokenizer = tokenizer_of(family)
        tokens = [tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))]
        # A continuation byte, spelled as each family spells it.
        stray = next((i for i, token in enumerate(tokens) if token in ("<0x80>", "Ģ", "\x80")), 5)
        space = next((i for i, token in enumerate(tokens) if token in ("▁", "Ġ", " ")), 6)
        # ByT5 itself cannot decode an id that no token has.
        unknown = stray if family == "byt5-slow" else 10**5
        index = {"short": stray, "special": tokenizer.all_special_ids[0], "unknown": unknown, "space": space}
        ids = [7, *[index[kind]] * 1000, 7]
        expected = whole(tokenizer, ids)
        lengths = self.record(tokenizer, monkeypatch)
        got = pieces(tokenizer, ids, [1])

        assert expected == "".join(got)
        assert sum(lengths) <= 20 * len(ids)

    @staticmethod
    def record(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        lengths, decode = [], tokenizer.decode

        def recording(ids: list[int], **options: Any) -> str:
            lengths.append(len(ids))
            return decode(ids, **options)

        monkeypatch.setattr(tokenizer, "decode", recording)
        return lengths


def test_ascii_is_never_held() -> None:
    """Byte-level ASCII comes out with the very token that carries it."""
    tokenizer = tokenizer_of("byte-level")
    for index in tokenizer.encode(SENTENCES[0] + SENTENCES[10]):
        detokenizer = Detokenizer(tokenizer)

        assert whole(tokenizer, [index]) == detokenizer.push([index])
        assert detokenizer.flush() == ""


def test_only_the_open_character_is_held() -> None:
    """Of a token that ends inside a character, the text before it comes at once."""
    tokenizer = tokenizer_of("byte-level")
    a, lead = tokenizer.convert_tokens_to_ids(["a", "ã"])

    assert pieces(tokenizer, [a, lead, a], [2]) == ["a", "\ufffda", ""]


def test_a_run_of_byte_tokens_is_final_when_it_ends() -> None:
    """One bad byte turns the whole run into U+FFFD, so not even a complete character is final before."""
    tokenizer = tokenizer_of("unigram-byte-fallback-llama")
    run = tokenizer.convert_tokens_to_ids(["<0xE3>", "<0x81>", "<0x82>"])
    bad, a = tokenizer.convert_tokens_to_ids(["<0xFF>", "a"])

    assert pieces(tokenizer, [a, *run, a], [1]) == ["a", "", "", "", "あa", ""]
    assert pieces(tokenizer, [a, *run, bad, a], [1]) == ["a", "", "", "", "\ufffd" * 4, "a", ""]
    assert pieces(tokenizer, [a, *run], [8]) == ["a", "あ"]


def test_a_skipped_token_does_not_end_a_run_of_byte_tokens() -> None:
    """The library drops it before it reads the bytes."""
    tokenizer = tokenizer_of("unigram-byte-fallback-llama")
    run = tokenizer.convert_tokens_to_ids(["<0xE3>", "<s>", "<0x81>", "<0x82>", "a"])

    assert pieces(tokenizer, run, [1]) == ["", "", "", "", "あa", ""]


def test_a_literal_replacement_character_is_not_held() -> None:
    """A token that spells U+FFFD itself is no unfinished character."""
    tokenizer = tokenizer_of("unigram-metaspace")
    index = tokenizer.convert_tokens_to_ids("\ufffd")

    assert pieces(tokenizer, [index, index], [1]) == ["\ufffd", "\ufffd", ""]


def test_a_space_after_skipped_tokens_is_kept() -> None:
    """Skipped tokens do not make the next one the first of the text."""
    tokenizer = tokenizer_of("unigram-byte-fallback-llama")
    ids = tokenizer.encode("a fox", add_special_tokens=False)
    special = tokenizer.convert_tokens_to_ids("<s>")

    assert "".join(pieces(tokenizer, [ids[0], *[special] * 20, *ids[1:]], [1])) == "a fox"


def test_rows_do_not_share_progress() -> None:
    """Two detokenisers of one tokenizer are independent."""
    tokenizer = tokenizer_of("byte-level")
    lead = tokenizer.convert_tokens_to_ids("ã")
    one, other = Detokenizer(tokenizer), Detokenizer(tokenizer)

    assert one.push([lead]) == ""
    assert other.flush() == ""
    assert one.flush() == "\ufffd"
    assert one.flush() == ""


def test_a_decoder_written_in_python_is_decoded_in_windows() -> None:
    """What the library cannot describe is not taken for byte-level."""

    class Upper:
        def decode_chain(self, tokens: list[str]) -> list[str]:
            return [token.upper() for token in tokens]

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.backend_tokenizer.decoder = decoders.Decoder.custom(Upper())

    assert pieces(tokenizer, [0, 1, 0], [1]) == ["A", "B", "A", ""]
