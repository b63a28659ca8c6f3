"""The machine says what searching for every string says."""

from hypothesis import given, strategies as st

from decodekit.decoding.stopping.aho_corasick import AhoCorasick

STRINGS = st.lists(st.text("abé", min_size=1, max_size=5), max_size=8)


@given(STRINGS, st.text("abéc", max_size=20))
def test_equals_the_definition(strings: list[str], text: str) -> None:
    """After every character: the longest string that ends there, and the longest live beginning of any."""
    machine, state = AhoCorasick.of(tuple(strings)), 0
    for end, character in enumerate(text, start=1):
        state = machine.step(state, character)
        seen = text[:end]
        finish = [(-len(s), index) for index, s in enumerate(strings) if seen.endswith(s)]
        live = [n for s in strings for n in range(len(s)) if seen.endswith(s[:n])]

        assert (min(finish)[1] if finish else None) == machine.found[state]
        assert max(live, default=0) == machine.live[state]


@given(STRINGS, st.text("abéc", max_size=10), st.text("abéc", max_size=10))
def test_a_text_may_come_in_pieces(strings: list[str], one: str, other: str) -> None:
    """Its cuts make no difference."""
    machine = AhoCorasick.of(tuple(strings))

    assert machine.read(0, one + other) == machine.read(machine.read(0, one), other)


def test_is_made_once() -> None:
    """The same strings share one automaton."""
    assert AhoCorasick.of(("ab", "c")) is AhoCorasick.of(("ab", "c"))
    assert AhoCorasick.of(("c", "ab")) is not AhoCorasick.of(("ab", "c"))


def test_nothing_sought_is_never_found() -> None:
    """No string, no state but the first."""
    machine = AhoCorasick.of(())

    assert machine.read(0, "abc") == 0
    assert machine.found == [None]
    assert machine.live == [0]
