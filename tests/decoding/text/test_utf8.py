"""Where bytes end inside a character."""

import itertools

from decodekit.decoding.text.utf8 import open_from

# The ends of every range of table 3-7 of the Unicode Standard, from both sides.
EDGES = bytes.fromhex("41 7F 80 8F 90 9F A0 BF C0 C1 C2 DF E0 E1 EC ED EE EF F0 F1 F3 F4 F5 FF")


# Of 64 characters in a row only the last bytes differ.
CHARACTERS = [chr(c).encode() for c in range(0x80, 0x110000, 64) if not 0xD800 <= c < 0xE000]
OPENINGS = {character[:n] for character in CHARACTERS for n in range(1, len(character))}


def by_definition(data: bytes) -> int:
    """The first place from which the rest begins a character."""
    starts = range(max(0, len(data) - 3), len(data))
    return next((start for start in starts if data[start:] in OPENINGS), len(data))


def test_equals_the_definition() -> None:
    """For all short sequences of the bytes at which any rule changes."""
    for n in range(4):
        for data in map(bytes, itertools.product(EDGES, repeat=n)):
            assert by_definition(data) == open_from(data), data.hex()


def test_what_is_before_decodes_alike_whatever_follows() -> None:
    """Every text, cut anywhere."""
    text = "aé€𠮷\ufffd".encode() + b"\xed\xa0\x80\xf4\x90\xc0\xaf\xff" + "é".encode()
    for end in range(len(text) + 1):
        closed = text[: open_from(text[:end])].decode(errors="replace")

        assert text.decode(errors="replace").startswith(closed)
