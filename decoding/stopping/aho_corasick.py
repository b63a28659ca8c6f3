"""The Aho-Corasick automaton: search for many sequences at once."""

import functools
from collections import deque
from collections.abc import Hashable, Iterable, Sequence

import attrs


@attrs.frozen(eq=False)
class AhoCorasick:
    """
    An automaton that reads a text, of characters or tokens, and finds the strings that end there.

    Aho and Corasick, 1975, `Efficient String Matching: An Aid to Bibliographic Search
    <https://doi.org/10.1145/360825.360855>`_, algorithms 1 to 3: amortised constant time per
    symbol, however many strings there are. A state is a number, initially 0, and represents the
    longest suffix of the text that is a prefix of a string. The automaton is immutable.

    >>> machine = AhoCorasick.of(("he", "she", "hers"))
    >>> state = machine.read(0, "us")
    >>> state = machine.read(state, "he")
    >>> machine.found[state], machine.live[state]
    (1, 2)
    """

    found: list[int | None]
    """For each state, the index of the longest string that ends there."""

    live: list[int]
    """For each state, the length of the suffix that may be the beginning of a string."""

    _goto: list[dict[Hashable, int]] = attrs.field(repr=False)
    _failure: list[int] = attrs.field(repr=False)

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def of(strings: tuple[Sequence[Hashable], ...]) -> "AhoCorasick":
        """The automaton for *strings*, none of them empty; cached."""
        goto: list[dict[Hashable, int]] = [{}]
        found: list[int | None] = [None]
        for index, string in enumerate(strings):
            state = 0
            for symbol in string:
                if symbol not in goto[state]:
                    goto[state][symbol] = len(goto)
                    goto.append({})
                    found.append(None)
                state = goto[state][symbol]
            # Of duplicates the first counts.
            found[state] = index if found[state] is None else found[state]

        machine = AhoCorasick(found, [0] * len(goto), goto, [0] * len(goto))
        depth, states = [0] * len(goto), deque([0])
        while states:
            state = states.popleft()
            failure = machine._failure[state]
            # A string that ends here is longer than any that ends in the failure state.
            found[state] = found[failure] if found[state] is None else found[state]
            machine.live[state] = depth[state] if goto[state] else machine.live[failure]
            for symbol, child in goto[state].items():
                machine._failure[child] = machine.step(failure, symbol) if state else 0
                depth[child] = depth[state] + 1
                states.append(child)
        return machine

    def step(self, state: int, symbol: Hashable) -> int:
        """The state after one more symbol."""
        while state and symbol not in self._goto[state]:
            state = self._failure[state]
        return self._goto[state].get(symbol, 0)

    def read(self, state: int, text: Iterable[Hashable]) -> int:
        """The state after *text*."""
        for symbol in text:
            state = self.step(state, symbol)
        return state
