"""
Text in a terminal: cell widths and replacement of control characters.

Terminals disagree about joined emoji and some other sequences: one shows a family of three in 2
cells, another as three emoji in 6. Widths here are the largest of these, so that text cut to a
width never exceeds it.
"""

import functools
import unicodedata
from collections.abc import Iterator

_JOINER, _EMOJI_PRESENTATION = "\u200d", "\ufe0f"

# Unicode's "prepended concatenation marks": the only visible format characters.
_SEEN = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")


def _pictures() -> dict[int, str]:
    controls = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
    # Bidirectional controls, which would reorder adjacent text, and line and paragraph separators.
    directions = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029]
    others = [*range(0x80, 0xA0), *directions, *range(0xD800, 0xE000)]
    return controls | {0x7F: "\u2421"} | dict.fromkeys(others, "\ufffd")


_PICTURES = _pictures()


def harmless(text: str) -> str:
    r"""
    Replace each control character except tab and newline by a symbol.

    Escape sequences become visible and have no effect.

    >>> harmless("\x1b[31mred")
    '␛[31mred'
    """
    return text.translate(_PICTURES)


@functools.lru_cache(maxsize=8192)
def cells(character: str) -> int:
    """Width of one harmless character in cells: 0 if it combines with the one before, 1, or 2."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf") and character not in _SEEN:
        # A soft hyphen is visible in some terminals.
        return int(character == "\u00ad")
    if "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7ff":
        return 0  # Hangul vowels and finals share the cells of their initial
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clusters(text: str) -> Iterator[tuple[str, int]]:
    """Units that must not be split across lines, with their largest width in cells."""
    cluster, width = "", 0
    for character in text:
        if cluster and not _joins(cluster, character):
            yield cluster, width
            cluster, width = "", 0
        cluster += character
        # The selector turns one-cell text, such as a heart, into a two-cell emoji.
        width = max(width, 2) if character == _EMOJI_PRESENTATION else width + cells(character)
    if cluster:
        yield cluster, width


def wrap(line: str, width: int) -> list[str]:
    """Cut *line* into pieces of at most *width* cells, at least one; a wider cluster stays whole."""
    pieces, used = [""], 0
    for cluster, taken in clusters(line):
        if pieces[-1] and used + taken > width:
            pieces.append("")
            used = 0
        pieces[-1] += cluster
        used += taken
    return pieces


def _joins(cluster: str, character: str) -> bool:
    """Whether *character* belongs to the *cluster* before it."""
    if cells(character) == 0 or cluster[-1] == _JOINER or "\U0001f3fb" <= character <= "\U0001f3ff":
        return True
    # Two regional indicators are a flag.
    return _is_regional(character) and _is_regional(cluster)


def _is_regional(text: str) -> bool:
    return len(text) == 1 and "\U0001f1e6" <= text <= "\U0001f1ff"
