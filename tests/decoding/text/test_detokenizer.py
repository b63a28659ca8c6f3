"""Whatever the tokenizer and the chunks, the pieces join to the decode of all ids."""

import functools
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from decodekit.decoding.text.detokenizer import Detokenizer
from decodekit.decoding.text.token_pieces import BYTE_OF

from ...strategies import examples
from ...texts_in_scripts import (
    FAMILIES,
    ODD,
    SCRIPTS,
    SPECIALS,
    Case,
    cases,
    decoded,
    tokenizer_of,
    whole_characters,
)

SENTENCES = [*SCRIPTS.values(), "გთხოვთ ახლავე გაიაროთ რეგისტრაცია", "a literal \ufffd, and \ufffd\ufffd"]
BYTE_RUNS = [family for family in FAMILIES if "fallback" in family]
# Ids that no token has, these cannot decode themselves.
NOT_BEYOND = ("slow-bytes", "bare")


def chunks(ids: list[int], sizes: list[int]) -> Iterator[list[int]]:
    start = 0
    while start < len(ids):
        size = sizes[start % len(sizes)]
        yield ids[start : start + size]
        start += size


def common_prefix_length(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


@functools.cache
def continuations(family: str) -> list[list[int]]:
    """No token, every single one, what completes any character, and what takes the space from " n't"."""
    tokenizer, letters = tokenizer_of(family), {byte: letter for letter, byte in BYTE_OF.items()}
    tokens = {tokenizer.convert_ids_to_tokens(i): i for i in range(len(tokenizer))}
    singles = [[i] for i in range(len(tokenizer))]
    spelled = []
    for byte in (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF):
        own = chr(byte) if family == "slow-bytes" else letters[byte]
        spelled += [tokens[name] for name in (f"<0x{byte:02X}>", bytes([byte]), own) if name in tokens][:1]
    several = [[*ids] for n in (2, 3) for ids in itertools.product(spelled, repeat=n)]
    shortened = [[tokens["'"], tokens["t"]]] if {"'", "t"} <= tokens.keys() else []
    return [[], *singles, *several, *shortened]


def trailing(character: str, text: str) -> int:
    return len(text) - len(text.rstrip(character))


# How much may wait although it is final, of a text: where only the text tells what is unfinished, a
# bad byte that reads like it; and of several spaces, those before the last.
WAITS = {
    "byte-level-reworked": lambda text: min(1, trailing("\ufffd", text)),
    "bare": lambda text: min(1, trailing("\ufffd", text)),
    "word-piece-cleaned": lambda text: trailing(" ", text),
}


def pieces(tokenizer: Any, ids: list[int], sizes: list[int], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(chunk) for chunk in chunks(ids, sizes)), detokenizer.flush()]


SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=5)
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(SENTENCES),
        st.sampled_from(ODD),
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
    short = [i for i, token in enumerate(tokens) if len(token) == 1 or str(token).startswith("<0x")]
    specials = [i for i, token in enumerate(tokens) if token in SPECIALS] or short
    last = size - 1 if family in NOT_BEYOND else size + 3
    anywhere = st.lists(st.integers(0, last), max_size=8)
    stretches = [anywhere, st.lists(st.sampled_from(short), max_size=12)]
    stretches.append(st.lists(st.sampled_from(specials), max_size=12))
    return [index for part in draw(st.lists(st.one_of(stretches), max_size=6)) for index in part]


@pytest.mark.parametrize("family", FAMILIES)
class TestDetokenizer:
    """What holds for every family of tokenizers."""

    @settings(max_examples=examples(60), deadline=None)
    @given(data=st.data())
    def test_pieces_join_to_the_decode_of_any_ids(self, family: str, data: st.DataObject) -> None:
        """Ids of any kind, malformed bytes included, in any chunks: nothing lost, nothing else."""
        ids, sizes, skip = data.draw(any_ids(family)), data.draw(SIZES), data.draw(st.booleans())

        assert decoded(tokenizer_of(family), ids, skip) == "".join(
            pieces(tokenizer_of(family), ids, sizes, skip)
        )

    @settings(max_examples=examples(40), deadline=None)
    @given(text=TEXTS, sizes=SIZES, skip=st.booleans())
    def test_pieces_join_to_the_decode_of_text(
        self, family: str, text: str, sizes: list[int], skip: bool
    ) -> None:
        """Any script, special tokens and literal U+FFFD included."""
        tokenizer = tokenizer_of(family)
        ids = tokenizer.encode(text, add_special_tokens=False)

        assert decoded(tokenizer, ids, skip) == "".join(pieces(tokenizer, ids, sizes, skip))

    @pytest.mark.parametrize("sentence", SENTENCES, ids=lambda s: s[:8].encode("unicode_escape").decode())
    def test_no_character_is_split(self, family: str, sentence: str) -> None:
        """After each token, what is out begins the final text and is sound Unicode."""
        tokenizer = tokenizer_of(family)
        ids = tokenizer.encode(sentence, add_special_tokens=False)
        final, shown = decoded(tokenizer, ids), ""
        for piece in pieces(tokenizer, ids, [1]):
            shown += piece

            assert final.startswith(shown)
            assert piece == piece.encode().decode()

        assert final == shown

    @settings(max_examples=examples(20), deadline=None)
    @given(data=st.data())
    def test_text_comes_as_soon_as_it_is_final(self, family: str, data: st.DataObject) -> None:
        """What is out is what all texts that begin with these ids have in common, tried on very many."""
        tokenizer, shown, ids = tokenizer_of(family), "", data.draw(any_ids(family))[:5]
        detokenizer = Detokenizer(tokenizer)
        for i, index in enumerate(ids):
            shown += detokenizer.push([index])
            texts = [decoded(tokenizer, ids[: i + 1] + more) for more in continuations(family)]
            final = texts[0][: common_prefix_length(min(texts), max(texts))]

            assert final.startswith(shown)
            assert len(final) - len(shown) <= WAITS.get(family, lambda text: 0)(final)

    @settings(max_examples=examples(40), deadline=None)
    @given(data=st.data())
    def test_peek_is_what_flush_would_give(self, family: str, data: st.DataObject) -> None:
        """At every point; and having looked changes nothing."""
        tokenizer = tokenizer_of(family)
        ids, sizes, skip = data.draw(any_ids(family)), data.draw(SIZES), data.draw(st.booleans())
        looked, plain = Detokenizer(tokenizer, skip), Detokenizer(tokenizer, skip)
        pushed: list[int] = []

        assert looked.peek() == ""
        for chunk in chunks(ids, sizes):
            pushed += chunk
            other = Detokenizer(tokenizer, skip)
            other.push(pushed)

            assert plain.push(chunk) == looked.push(chunk)
            assert other.flush() == looked.peek()
        assert plain.flush() == looked.flush()
        assert looked.peek() == ""

    @settings(max_examples=examples(30), deadline=None)
    @given(data=st.data())
    def test_preview_is_what_is_there_so_far(self, family: str, data: st.DataObject) -> None:
        """Less the character that is not complete; and having looked, however seldom, changes nothing."""
        ids, skip = data.draw(any_ids(family)), data.draw(st.booleans())
        tokenizer, shown = tokenizer_of(family), ""
        looked, plain = Detokenizer(tokenizer, skip), Detokenizer(tokenizer, skip)
        for i, index in enumerate(ids):
            piece = plain.push([index])
            shown += piece

            assert piece == looked.push([index])
            if data.draw(st.booleans()):
                expected = whole_characters(tokenizer, ids[: i + 1], skip)

                assert expected == (shown + looked.preview()).rstrip("\ufffd")
        assert plain.flush() == looked.flush()

    @pytest.mark.parametrize("size", [1, 5])
    def test_cost_is_linear(self, family: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Windows are bounded and few: their lengths add up to a multiple of the ids'."""
        tokenizer = tokenizer_of(family)
        ids = tokenizer.encode(" ".join(SENTENCES) * 3, add_special_tokens=False)
        lengths = self.record(tokenizer, monkeypatch)
        pieces(tokenizer, ids, [size])
        windows = [length for length in lengths if length > 2]

        assert sum(lengths) <= 20 * len(ids) + 20
        assert len(lengths) - len(windows) <= 4 * len(set(ids)) + 4
        if family not in BYTE_RUNS:
            # Longer than 16 only while a chunk ends inside a character.
            assert max(windows, default=0) <= (20 if size == 1 else 64)

    @pytest.mark.parametrize("kind", ["short", "special", "unknown", "space"])
    def test_cost_is_linear_when_nothing_is_final(
        self, family: str, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A thousand stray bytes, skipped tokens or silent spaces are not decoded again and again."""
        tokenizer = tokenizer_of(family)
        tokens = [tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))]
        # A continuation byte, spelled as each family spells it.
        stray = next((i for i, token in enumerate(tokens) if token in ("<0x80>", "Ģ", b"\x80")), 5)
        space = next((i for i, token in enumerate(tokens) if token in ("▁", "Ġ", " ", b" ")), 6)
        unknown = stray if family in NOT_BEYOND else 10**5
        special = next((i for i, token in enumerate(tokens) if token in SPECIALS), stray)
        index = {"short": stray, "special": special, "unknown": unknown, "space": space}
        ids = [7, *[index[kind]] * 1000, 7]
        expected = decoded(tokenizer, ids)
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
    for index in tokenizer.encode(SCRIPTS["code"] + " It's 13 lazy dogs."):
        detokenizer = Detokenizer(tokenizer)

        assert decoded(tokenizer, [index]) == detokenizer.push([index])
        assert detokenizer.flush() == ""


def test_only_the_open_character_is_held() -> None:
    """Of a token that ends inside a character, the text before it comes at once."""
    tokenizer = tokenizer_of("byte-level")
    a, lead = tokenizer.convert_tokens_to_ids(["a", "ã"])

    assert pieces(tokenizer, [a, lead, a], [2]) == ["a", "\ufffda", ""]


def test_a_run_of_byte_tokens_is_final_when_it_ends() -> None:
    """One bad byte turns the whole run into U+FFFD, so not even a complete character is final before."""
    tokenizer = tokenizer_of("bpe-byte-fallback")
    run = tokenizer.convert_tokens_to_ids(["<0xE3>", "<0x81>", "<0x82>"])
    bad, a = tokenizer.convert_tokens_to_ids(["<0xFF>", "a"])

    assert pieces(tokenizer, [a, *run, a], [1]) == ["a", "", "", "", "あa", ""]
    assert pieces(tokenizer, [a, *run, bad, a], [1]) == ["a", "", "", "", "\ufffd" * 4, "a", ""]
    assert pieces(tokenizer, [a, *run], [8]) == ["a", "あ"]


def test_a_skipped_token_does_not_end_a_run_of_byte_tokens() -> None:
    """The library drops it before it reads the bytes."""
    tokenizer = tokenizer_of("bpe-byte-fallback")
    run = tokenizer.convert_tokens_to_ids(["<0xE3>", "<s>", "<0x81>", "<0x82>", "a"])

    assert pieces(tokenizer, run, [1]) == ["", "", "", "", "あa", ""]


def test_a_literal_replacement_character_is_not_held() -> None:
    """A token that spells U+FFFD itself is no unfinished character."""
    tokenizer = tokenizer_of("unigram")
    index = tokenizer.convert_tokens_to_ids("\ufffd")

    assert pieces(tokenizer, [index, index], [1]) == ["\ufffd", "\ufffd", ""]


def test_a_space_after_skipped_tokens_is_kept() -> None:
    """Skipped tokens do not make the next one the first of the text."""
    tokenizer = tokenizer_of("bpe-byte-fallback")
    ids = tokenizer.encode("a fox", add_special_tokens=False)
    special = tokenizer.convert_tokens_to_ids("<s>")

    assert "".join(pieces(tokenizer, [ids[0], *[special] * 20, *ids[1:]], [1])) == "a fox"


@pytest.mark.parametrize("make", [lambda one: Detokenizer(one.tokenizer), Detokenizer.another])
def test_rows_do_not_share_progress(make: Callable[[Detokenizer], Detokenizer]) -> None:
    """Two detokenisers of one tokenizer are independent."""
    tokenizer = tokenizer_of("byte-level")
    lead = tokenizer.convert_tokens_to_ids("ã")
    one = Detokenizer(tokenizer)

    assert one.push([lead]) == ""
    assert make(one).flush() == ""
    assert one.flush() == "\ufffd"
    assert one.flush() == ""


def test_another_has_the_same_options() -> None:
    """And knows what the first one knows."""
    tokenizer = tokenizer_of("byte-level")
    one = Detokenizer(tokenizer, skip_special_tokens=False).another()

    assert one.push(tokenizer.encode("<s>", add_special_tokens=False)) == "<s>"


@pytest.mark.parametrize("family", FAMILIES)
def test_threads_may_share_a_tokenizer(family: str) -> None:
    """What each finds out about a token, all may use."""
    few = list(cases(40, families=(family,)))
    expected = [case.text for case in few]

    def stream(case: Case) -> str:
        detokenizer = Detokenizer(case.tokenizer, case.skip_special_tokens)
        return "".join(map(detokenizer.push, case.chunks())) + detokenizer.flush()

    with ThreadPoolExecutor(8) as pool:
        assert expected == list(pool.map(stream, few))


class Stripped:
    """Decodes as transformers' own SentencePiece class does."""

    TOKENS = ("▁", "a", "▁a")

    def decode(self, token_ids: list[int], **options: Any) -> str:
        """All spaces at either end are dropped."""
        return "".join(self.TOKENS[i] for i in token_ids).replace("▁", " ").strip()

    def convert_ids_to_tokens(self, index: int) -> str:
        """One piece."""
        return self.TOKENS[index]


@pytest.mark.parametrize("size", [1, 3, 8])
def test_spaces_that_show_only_when_something_follows_are_kept(size: int) -> None:
    """However many there are."""
    ids = [0, 1, *[0] * 40, 1, 2, *[0] * 20, 2, 0]

    assert "a" + " " * 40 + "a a" + " " * 21 + "a" == "".join(pieces(Stripped(), ids, [size]))


def test_a_decoder_written_in_python_is_decoded_in_windows() -> None:
    """What the library cannot describe is not taken for byte-level."""

    class Upper:
        def decode_chain(self, tokens: list[str]) -> list[str]:
            return [token.upper() for token in tokens]

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.backend_tokenizer.decoder = decoders.Decoder.custom(Upper())

    assert pieces(tokenizer, [0, 1, 0], [1]) == ["A", "B", "A", ""]
