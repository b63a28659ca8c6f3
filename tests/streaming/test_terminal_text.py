"""Cell widths and harmless text."""

import unicodedata

import pytest
from hypothesis import given, strategies as st

from decodekit.streaming.terminal_text import cells, clusters, harmless, wrap

FAMILY = "👩\u200d👩\u200d👧"


class TestHarmless:
    """What a terminal would obey."""

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("a\tb\nc", "a\tb\nc"),
            ("\x1b[2J\x1b]0;title\x07", "␛[2J␛]0;title␇"),
            ("\r\b\0\x7f", "␍␈␀␡"),
            ("\x9b31m", "\ufffd31m"),
            ("abc\u202edef", "abc\ufffddef"),
            ("\ud800", "\ufffd"),
        ],
    )
    def test_by_hand(self, text: str, shown: str) -> None:
        """Control characters of one byte, of the Latin-1 range, of directions; half a character."""
        assert shown == harmless(text)

    @given(st.text())
    def test_nothing_else_changes(self, text: str) -> None:
        """What is shown has as many characters, none of them a control character."""
        shown = harmless(text)

        assert len(text) == len(shown)
        for before, after in zip(text, shown, strict=True):
            assert after in "\t\n" or unicodedata.category(after) not in ("Cc", "Cs", "Zl", "Zp")
            assert before == after or unicodedata.category(before) in ("Cc", "Cs", "Zl", "Zp", "Cf")
        assert shown == harmless(shown)


class TestCells:
    """Of single characters."""

    @pytest.mark.parametrize(
        ("characters", "expected"),
        [
            ("aéЖअ-␛\ufffd", 1),
            ("日ひカ한,！👋", 2),
            ("\u0301\u200d\u200b\ufe0f\u0e31\u1161\ud7b0\u20dd", 0),
            ("\u0600\u00ad", 1),
        ],
    )
    def test_by_hand(self, characters: str, expected: int) -> None:
        """Letters; ideographs, syllables, full-width forms and emoji; marks and joiners; seen formats."""
        assert [expected] * len(characters) == [
            cells(character) for character in characters.replace(",", "，")
        ]


class TestWrap:
    """Lines of a width."""

    @pytest.mark.parametrize(
        ("line", "width", "pieces"),
        [
            ("", 5, [""]),
            ("abcdef", 3, ["abc", "def"]),
            ("日本語", 5, ["日本", "語"]),
            ("e\u0301e\u0301e\u0301", 2, ["e\u0301e\u0301", "e\u0301"]),
            ("a👋🏽b", 5, ["a👋🏽", "b"]),
            ("ab👋🏽", 5, ["ab", "👋🏽"]),
            (f"x{FAMILY}y", 7, ["x" + FAMILY, "y"]),
            (f"x{FAMILY}y", 4, ["x", FAMILY, "y"]),
            (FAMILY, 4, [FAMILY]),
            ("🇯🇵🇫🇷🇩", 4, ["🇯🇵🇫🇷", "🇩"]),
            ("🇯🇵🇫🇷", 3, ["🇯🇵", "🇫🇷"]),
            ("❤❤\ufe0f", 2, ["❤", "❤\ufe0f"]),
            ("한\u1100\u1161\u11a8", 2, ["한", "\u1100\u1161\u11a8"]),
        ],
    )
    def test_by_hand(self, line: str, width: int, pieces: list[str]) -> None:
        """What belongs together stays together, counted in its widest reading."""
        assert pieces == wrap(line, width)

    @given(st.text(st.sampled_from("aé日👩🏽\u200d\ufe0f\u0301🇯🇵❤\u1100\u1161")), st.integers(2, 9))
    def test_nothing_is_lost_and_nothing_too_wide(self, line: str, width: int) -> None:
        """The pieces join to the line; only what cannot be parted is wider."""
        pieces = wrap(line, width)

        assert line == "".join(pieces)
        for piece in pieces:
            taken = [cells for _, cells in clusters(piece)]
            assert sum(taken) <= width or len(taken) == 1
