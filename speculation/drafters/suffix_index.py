"""Online suffix automaton with latest occurrences."""

from collections.abc import Iterable


class SuffixIndex:
    """
    Suffix automaton of a growing text.

    A state is a class of substrings with the same end positions; its suffix link leads to their
    longest suffix that has further end positions. So the link of the whole text's state is the
    longest suffix that occurred before. A token is added in amortised constant time:
    Blumer et al., 1985, `The smallest automaton recognizing the subwords of a text
    <https://doi.org/10.1016/0304-3975(85)90157-4>`_.

    A state's latest end position changes with every token for all states on a chain of links. It is
    updated lazily, for all tokens since the last query at once, newest first: the walk up the links
    stops at a state that is already updated. While a match continues to match, it only grows, and no
    update is needed. So a query costs one chain at most, about log(length) states for a non-periodic
    text, and nothing while the text is periodic.
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

        self._prefix = [0]
        """States of the text's prefixes, by length."""

        self._noted = 0
        """``_latest`` is up to date for ends up to here."""

        self._match = (0, 0, 0)
        """Last result of :meth:`repeated`: length and end of the match, and length of the text."""

        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Append *token* to the text."""
        before, whole = self._prefix[-1], self._new(len(self.tokens) + 1, {}, 0, 0)
        self.tokens.append(token)
        self._prefix.append(whole)
        while before >= 0 and token not in self._next[before]:
            self._next[before][token] = whole
            before = self._up(before)
        if before >= 0:
            self._link[whole] = self._followed_by(before, token)

    def repeated(self) -> tuple[int, int]:
        """
        Find the longest suffix of the text that occurred earlier.

        Returns:
            Its length, and the end position of its latest earlier occurrence, which may overlap the
            suffix. 0 and 0 if there is none.
        """
        now = len(self.tokens)
        length, end, at = self._match
        more = now - at
        # The longest repeated suffix grows by at most one per token, so an extended match stays the longest.
        if length and self.tokens[end : end + more] == self.tokens[at:now]:
            self._match = length + more, end + more, now
        else:
            state = max(0, self._link[self._prefix[now]])
            self._match = self._length[state], self.latest(state, now - 1) if state else 0, now
        return self._match[:2]

    def latest(self, state: int, end: int) -> int:
        """Latest end position of *state* up to *end*, which must not decrease; 0 for none."""
        for position in range(end, self._noted, -1):
            reached = self._prefix[position]
            while reached > 0 and self._latest[reached] <= self._noted:
                self._latest[reached] = position
                reached = self._up(reached)
        self._noted = max(self._noted, end)
        return self._latest[state]

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
        split = self._new(length, dict(self._next[shared]), self._link[shared], self._latest[shared])
        self._link[shared] = split
        while before >= 0 and self._next[before].get(token) == shared:
            self._next[before][token] = split
            before = self._up(before)
        return split

    def _new(self, length: int, transitions: dict[int, int], link: int, latest: int) -> int:
        self._next.append(transitions)
        self._link.append(link)
        self._length.append(length)
        self._latest.append(latest)
        return len(self._link) - 1

    def _up(self, state: int) -> int:
        self.steps += 1
        return self._link[state]
