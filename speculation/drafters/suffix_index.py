"""Online suffix automaton with latest occurrences."""

from collections.abc import Iterable

from .repeated_suffix import RepeatedSuffix


class SuffixIndex:
    """
    Suffix automaton of a growing text.

    A state is a class of substrings with the same end positions; its suffix link leads to their
    longest suffix that has further end positions. So the link of the whole text's state is the
    longest suffix that occurred before. A token is added in amortised constant time:
    Blumer et al., 1985, `The smallest automaton recognizing the subwords of a text
    <https://doi.org/10.1016/0304-3975(85)90157-4>`_.

    A state's two latest end positions change with every token for all states on a chain of links. They
    are updated lazily, for all tokens since the last query at once, newest first: the walk up the links
    stops at a state that has two newer ones already. While both occurrences of a match continue to match,
    it only grows, and no update is needed. So a query visits each state of the chains at most twice, about
    log(length) states of a non-periodic text, and none while the text is periodic.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        """Tokens of the text."""

        self.steps = 0
        """Number of states visited; the running time is proportional to it."""

        # By state; state 0 is the empty string:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._latest = [0]
        self._earlier = [0]

        self._prefix = [0]
        """States of the text's prefixes, by length."""

        self._noted = 0
        """``_latest`` and ``_earlier`` are up to date for ends up to here."""

        self._match = RepeatedSuffix(0, 0, 0)
        """The last result of :meth:`repeated`."""

        self._matched = 0
        """The length of the text at that time."""

        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Append *token* to the text."""
        before, whole = self._prefix[-1], self._new(len(self.tokens) + 1, {}, 0, (0, 0))
        self.tokens.append(token)
        self._prefix.append(whole)
        while before >= 0 and token not in self._next[before]:
            self._next[before][token] = whole
            before = self._up(before)
        if before >= 0:
            self._link[whole] = self._followed_by(before, token)

    def repeated(self) -> RepeatedSuffix:
        """Find the longest suffix of the text that occurred earlier."""
        now, (length, end, earlier) = len(self.tokens), self._match
        more, added = now - self._matched, self.tokens[self._matched :]
        # The longest repeated suffix grows by at most one per token, so an extended match stays the longest.
        if length and all(self.tokens[at : at + more] == added for at in (end, earlier) if at):
            self._match = RepeatedSuffix(length + more, end + more, earlier and earlier + more)
        else:
            state = max(0, self._link[self._prefix[now]])
            self._match = RepeatedSuffix(self._length[state], *self.ends(state, now - 1) if state else (0, 0))
        self._matched = now
        return self._match

    def ends(self, state: int, end: int) -> tuple[int, int]:
        """The two latest end positions of *state* up to *end*, which must not decrease; 0 for none."""
        for position in range(end, self._noted, -1):
            reached = self._prefix[position]
            while reached > 0 and self._earlier[reached] <= self._noted:
                if self._latest[reached] <= self._noted:
                    self._latest[reached], self._earlier[reached] = position, self._latest[reached]
                else:
                    self._earlier[reached] = position
                reached = self._up(reached)
        self._noted = max(self._noted, end)
        return self._latest[state], self._earlier[state]

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """
        Advance the match of another text by *token*.

        Args:
            state: State of the longest suffix of the other text that occurs in this one; initially 0.

            length: Length of that suffix.

            token: Next token of the other text.

        Returns:
            The new *state* and *length*.
        """
        while state > 0 and token not in self._next[state]:
            state = self._up(state)
            length = self._length[state]
        found = self._next[state].get(token, 0)
        return found, length + 1 if found else 0

    def _followed_by(self, before: int, token: int) -> int:
        """State of the longest string of *before* plus *token*, split off if longer strings share it."""
        shared, length = self._next[before][token], self._length[before] + 1
        if self._length[shared] == length:
            return shared
        ends = self._latest[shared], self._earlier[shared]
        split = self._new(length, dict(self._next[shared]), self._link[shared], ends)
        self._link[shared] = split
        while before >= 0 and self._next[before].get(token) == shared:
            self._next[before][token] = split
            before = self._up(before)
        return split

    def _new(self, length: int, transitions: dict[int, int], link: int, ends: tuple[int, int]) -> int:
        self._next.append(transitions)
        self._link.append(link)
        self._length.append(length)
        self._latest.append(ends[0])
        self._earlier.append(ends[1])
        return len(self._link) - 1

    def _up(self, state: int) -> int:
        self.steps += 1
        return self._link[state]
