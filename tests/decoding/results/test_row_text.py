"""A row's text is the decode of its ids, cut at its finish, however it is streamed."""

import functools
import itertools
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from decodekit.decoding.protocols import Finish
from decodekit.decoding.results.row_text import RowText
from decodekit.decoding.stopping.stop_sequences import TokenSequence
from decodekit.decoding.text.detokenizer import Detokenizer

from ...strategies import examples

VOCAB = ["a", "b", "ab", "ba", "aab", "bb", "c", "abc", "<0x61>", "<0x62>", "<0xC3>", "<0xA9>"]


@functools.cache
def tokenizer() -> Any:
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCAB)}, unk_token="c"))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def row_text(*matched: Any, hide: bool = True) -> RowText:
    return RowText(Detokenizer(tokenizer()), tuple(Finish("", match, hide) for match in matched))


def common_prefix_length(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def ids_of(*tokens: str) -> list[int]:
    return [VOCAB.index(token) for token in tokens]


def decode(ids: list[int]) -> str:
    return tokenizer().decode(ids) if ids else ""


def looks(ids: list[int]) -> str:
    """The text less a character that is not complete."""
    run = list(itertools.takewhile(lambda i: VOCAB[i].startswith("<0x"), reversed(ids)))
    data = bytes(int(VOCAB[i][3:5], 16) for i in reversed(run))
    try:
        data[:-1].decode()
    except UnicodeDecodeError:
        return decode(ids)
    return decode(ids[:-1] if data.endswith(b"\xc3") else ids)


def streamed(row: RowText, ids: list[int], sizes: list[int], finish: Finish) -> list[str]:
    pieces, start = [], 0
    while start < len(ids):
        stop = start + sizes[start % len(sizes)]
        pieces.append(row.push(ids[start:stop], finish if stop >= len(ids) else None))
        start = stop
    return pieces


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3, unique=True)


class TestStopStrings:
    """Matches in the text."""

    @settings(max_examples=examples(300), deadline=None)
    @given(
        ids=st.lists(st.integers(0, len(VOCAB) - 1), min_size=1, max_size=14),
        stops=STOPS,
        hide=st.booleans(),
        late=st.integers(0, 4),
        sizes=SIZES,
    )
    def test_text_is_cut_where_the_match_says(
        self, ids: list[int], stops: list[str], hide: bool, late: int, sizes: list[int]
    ) -> None:
        """As by searching the full decode after every token; early matches may not count."""
        for end in range(1 + late, len(ids) + 1):
            before, text = looks(ids[: end - 1]), looks(ids[:end])
            found = [
                (at + len(stop), stop)
                for stop in stops
                for at in range(len(text))
                if text.startswith(stop, at) and at + len(stop) > common_prefix_length(before, text)
            ]
            if found:
                cut, stop = min(found)
                ids, finish = ids[:end], Finish("stop_string", stop, hide)
                expected = text[: cut - len(stop) if hide else cut]
                break
        else:
            finish, expected = Finish("max_new_tokens"), decode(ids)
        row = row_text(*stops, hide=hide)

        assert expected == "".join(streamed(row, ids, sizes, finish))

    @settings(max_examples=examples(200), deadline=None)
    @given(ids=st.lists(st.integers(0, 7), max_size=14), stops=STOPS)
    def test_held_is_the_longest_live_partial_match(self, ids: list[int], stops: list[str]) -> None:
        """A partial match that dies is released with the token that kills it."""
        row, shown = row_text(*stops), ""
        for i, index in enumerate(ids):
            shown += row.push([index])
            text = decode(ids[: i + 1])
            live = [n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]

            assert text[: len(text) - max(live)] == shown

        assert decode(ids) == shown + row.push([], Finish("stopped"))

    def test_partial_matches_are_released_when_they_die(self) -> None:
        """Worked by hand."""
        row = row_text("aab")

        assert row.push(ids_of("a")) == ""
        assert row.push(ids_of("a")) == ""
        assert row.push(ids_of("a")) == "a"
        assert row.push(ids_of("c")) == "aac"

    def test_text_of_the_token_beyond_the_match_is_dropped(self) -> None:
        """A token may complete the match and go on."""
        for hide, expected in [(True, "c"), (False, "cab")]:
            row = row_text("ab", hide=hide)

            assert row.push(ids_of("c", "abc"), Finish("stop_string", "ab", hide)) == expected

    def test_a_shown_match_may_begin_in_text_that_is_out(self) -> None:
        """What is not hidden is not held back, and is found all the same."""
        row = row_text("abb", hide=False)
        pieces = [row.push(ids_of(token)) for token in ("c", "a", "b")]

        assert pieces == ["c", "a", "b"]
        assert row.push(ids_of("ba"), Finish("stop_string", "abb")) == "b"

    def test_a_hidden_match_within_byte_tokens_is_found(self) -> None:
        """Their text is held, so the last push finds the string in what it flushes."""
        row = row_text("ab")

        assert row.push(ids_of("c")) == "c"
        assert row.push(ids_of("<0x61>")) == ""
        assert row.push(ids_of("<0x62>"), Finish("stop_string", "ab", hide=True)) == ""

    def test_a_match_before_the_newest_of_a_run_of_byte_tokens_does_not_count(self) -> None:
        """Only what the newest token completes cuts the text, final or not before."""
        row = row_text("a")

        assert row.push(ids_of("<0x61>", "<0x62>", "<0x61>"), Finish("both", ("a", None), hide=True)) == "ab"

    def test_a_character_that_is_complete_at_last_is_new(self) -> None:
        """Its bytes looked like two of U+FFFD before: the text has become shorter."""
        for hide, expected in [(True, "c"), (False, "cé")]:
            row = row_text("é", hide=hide)

            assert row.push(ids_of("c", "<0xC3>", "<0xA9>"), Finish("stop_string", "é", hide)) == expected

    def test_an_ending_of_two_conditions_hides_the_string_of_one(self) -> None:
        """Both matches stand side by side, as announced."""
        row, both = row_text((("ab", None), None)), (("ab", None), None)

        assert row.push(ids_of("a")) == ""
        assert row.push(ids_of("b"), Finish("stop_string and enough", both, hide=True)) == ""

    def test_of_two_strings_the_one_that_ends_first_cuts(self) -> None:
        """The other begins earlier: it does not count."""
        both = ("abb", "b")

        assert row_text(both).push(ids_of("a", "bb"), Finish("both", both, hide=True)) == "a"

    def test_beside_a_string_ids_hide_nothing(self) -> None:
        """The text ends at the string, not a token earlier."""
        row = row_text(("b", 5))

        assert row.push(ids_of("c", "bb"), Finish("both", ("b", 5), hide=True)) == "c"
        assert row_text(("a", 5)).push(ids_of("c", "bb"), Finish("both", ("a", 5), hide=True)) == "cbb"

    def test_a_match_that_is_not_there_cuts_nothing(self) -> None:
        """Nor does one that lies before the newest token."""
        assert row_text("ab").push(ids_of("ab", "c"), Finish("stop_string", "ab", hide=True)) == "abc"

    def test_a_match_that_was_not_announced_is_no_error(self) -> None:
        """What is out stays out."""
        row = row_text()

        assert row.push(ids_of("a")) == "a"
        assert row.push(ids_of("b"), Finish("stop_string", "ab", hide=True)) == "b"


def test_the_name_of_what_left_no_token_is_no_stop_string() -> None:
    """A text that happens to say it is whole, whatever the stage is called."""
    ids = ids_of("c", "abc")

    assert "cabc" == row_text().push(ids, Finish("no_token_left", matched="b"))


class TestStopIds:
    """Matches in the ids."""

    def test_a_hidden_stop_token_leaves_no_text(self) -> None:
        """Only the last token does not show; an equal one before it does."""
        row = row_text(2)

        assert row.push(ids_of("ab", "c")) == "abc"
        assert row.push(ids_of("ab", "ab"), Finish("end_of_sequence", 2, hide=True)) == "ab"

    def test_a_stop_token_that_is_not_hidden_shows(self) -> None:
        """It is text as any other."""
        assert row_text().push(ids_of("c", "ab"), Finish("end_of_sequence", 2)) == "cab"

    def test_a_limit_is_no_token(self) -> None:
        """A finish without a match hides nothing."""
        assert row_text(None).push(ids_of("c", "ab"), Finish("limit", None, hide=True)) == "cab"

    def test_a_hidden_token_beside_a_limit_leaves_no_text(self) -> None:
        """Wherever it stands in what was met."""
        both = (None, (2, None))

        assert row_text(both).push(ids_of("c", "ab"), Finish("both", both, hide=True)) == "c"

    def test_text_before_a_hidden_token_is_flushed(self) -> None:
        """Half a character is what it is when nothing follows."""
        row = row_text(2)

        assert row.push(ids_of("<0xC3>")) == ""
        assert row.push(ids_of("ab"), Finish("end_of_sequence", 2, hide=True)) == "\ufffd"


class TestStopSequences:
    """Matches of several ids."""

    @settings(max_examples=examples(300), deadline=None)
    @given(
        ids=st.lists(st.integers(0, 3) | st.integers(8, 11), min_size=1, max_size=14),
        sequences=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=3),
        late=st.integers(1, 5),
        hide=st.booleans(),
        sizes=SIZES,
    )
    def test_the_text_is_that_of_the_other_tokens(
        self, ids: list[int], sequences: list[list[int]], late: int, hide: bool, sizes: list[int]
    ) -> None:
        """The decode of what precedes the match, whatever held prefix came before."""
        finish, shown = Finish("max_new_tokens"), ids
        for end in range(late, len(ids) + 1):
            met = [one for one in sequences if ids[max(0, end - len(one)) : end] == one]
            if met:
                ids, longest = ids[:end], max(met, key=len)
                finish = Finish("stop_sequence", TokenSequence(longest), hide)
                shown = ids[: end - len(longest)] if hide else ids
                break
        row = row_text(*map(TokenSequence, sequences), hide=hide)

        assert decode(shown) == "".join(streamed(row, ids, sizes, finish))

    def test_held_is_a_live_partial_match(self) -> None:
        """Worked by hand: "a" waits until it is clear that no "b", "c" follows."""
        row = row_text(TokenSequence(ids_of("a", "b", "c")))

        assert ["", "a", "", "ab", "aab"] == [row.push(ids_of(token)) for token in ("a", "a", "b", "a", "ab")]
        assert "" == row.push(ids_of("a", "b"))
        assert "" == row.push(ids_of("c"), Finish("met", TokenSequence(ids_of("a", "b", "c")), hide=True))

    def test_one_that_shows_is_not_held(self) -> None:
        """It is text as any other."""
        row = row_text(TokenSequence(ids_of("a", "b")), hide=False)

        assert "a" == row.push(ids_of("a"))
        assert "b" == row.push(ids_of("b"), Finish("met", TokenSequence(ids_of("a", "b"))))

    def test_what_waits_comes_out_in_the_end(self) -> None:
        """However the row ends; before a hidden string as well."""
        for finish, expected in [(Finish("limit"), "aab"), (Finish("met", "ab", hide=True), "a")]:
            row = row_text(TokenSequence(ids_of("a", "ab", "c")))

            assert "" == row.push(ids_of("a"))
            assert expected == row.push(ids_of("ab"), finish)

    def test_a_sequence_is_no_pair(self) -> None:
        """Two stop tokens that are both met hide one token, a sequence of two hides two."""
        pair, sequence = (2, 2), TokenSequence((2, 2))

        assert "ab" == row_text(pair).push(ids_of("ab", "ab"), Finish("both", pair, hide=True))
        assert "" == row_text(sequence).push(ids_of("ab", "ab"), Finish("met", sequence, hide=True))
        assert "" == row_text((sequence, 2)).push([2, 2], Finish("both", (sequence, 2), hide=True))

    def test_one_that_was_not_announced_is_no_error(self) -> None:
        """What is out stays out."""
        row = row_text()

        assert "a" == row.push(ids_of("a"))
        assert "" == row.push(ids_of("b"), Finish("met", TokenSequence(ids_of("a", "b")), hide=True))


def test_long_stop_strings_cost_no_more_than_their_length() -> None:
    """A thousand live partial matches of a long string are held and come out once."""
    row = row_text("a" * 500 + "b")
    shown = "".join(row.push(ids_of("a")) for _ in range(1000))

    assert shown == "a" * 500
    assert shown + row.push([], Finish("stopped")) == "a" * 1000


@pytest.mark.parametrize("length", [1, 2, 30])
def test_what_is_kept_of_the_text_is_bounded(length: int) -> None:
    """As much as a string may have begun in, however long the row."""
    row = row_text("b" * length, hide=False)
    for _ in range(100):
        row.push(ids_of("ab"))

    assert length - 1 == len(row._tail)


@pytest.mark.parametrize("matched", [(), ("",), ((),), (None,), (3,)])
def test_nothing_hidden_holds_nothing(matched: tuple[Any, ...]) -> None:
    """Empty matches, limits and tokens are no reason to wait."""
    assert row_text(*matched).push(ids_of("a", "b")) == "ab"
