"""The substrings of a text, and where each of them ended latest."""

from collections.abc import Iterable


class SuffixIndex:
    """
    The suffix automaton of a text that grows.

    A state is a class of substrings that end at the same positions; its suffix link leads to
    the longest suffix of them that ends elsewhere too. So the link of the whole text's state
    is the longest suffix that occurred before. A token is added in amortised constant time:
    Blumer et al., 1985, `The smallest automaton recognizing the subwords of a text
    <https://doi.org/10.1016/0304-3975(85)90157-4>`_.

    Where a state ended *latest* changes with every token for all states on a chain of links,
    so it is noted when somebody asks, for all tokens since then at once, from the newest on:
    who meets a state that was met before has met all above it. While what follows a match is
    what followed it before, the match only grows, and nothing need be noted at all. Hence a
    question costs a chain at most, some log(text) states where the text does not go in circles,
    and nothing as long as it does.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        """The text."""

        self.steps = 0
        """States visited so far: what the time is proportional to."""

        # Of each state, the first of them the empty string's:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._latest = [0]

        self._prefix = [0]
        """The states of the text's beginnings, by their length."""

        self._noted = 0
        """Ends up to this one are in ``_latest``."""

        self._match = (0, 0, 0)
        """Of the last answer: length and end of the match, and how long the text was."""

        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Let the text go on with *token*."""
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
        The longest suffix of the text that occurred earlier.

        Returns:
            Its length, and the end of its latest occurrence but this: tokens before it. They
            overlap where the text goes in circles. 0 and 0 if there is none.
        """
        now = len(self.tokens)
        length, end, at = self._match
        more = now - at
        # A suffix that grows by more than a token would have been the longer one before.
        if length and self.tokens[end : end + more] == self.tokens[at:now]:
            self._match = length + more, end + more, now
        else:
            state = max(0, self._link[self._prefix[now]])
            self._match = self._length[state], self.latest(state, now - 1) if state else 0, now
        return self._match[:2]

    def latest(self, state: int, end: int) -> int:
        """Where *state* ended latest, up to *end*, which is not to go back; 0 for nowhere."""
        for position in range(end, self._noted, -1):
            met = self._prefix[position]
            while met > 0 and self._latest[met] <= self._noted:
                self._latest[met] = position
                met = self._up(met)
        self._noted = max(self._noted, end)
        return self._latest[state]

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """
        Read *token* of another text.

        Args:
            state: That of the longest suffix of the other text that this one holds; 0 at first.

            length: Of that suffix.

            token: What the other text goes on with.

        Returns:
            The new *state* and *length*.
        """
        while state > 0 and token not in self._next[state]:
            state = self._up(state)
            length = self._length[state]
        found = self._next[state].get(token, 0)
        return found, length + 1 if found else 0

    def _followed_by(self, before: int, token: int) -> int:
        """The state of the longest string of *before* and *token*: split off if longer ones share it."""
        shared, length = self._next[before][token], self._length[before] + 1
        if self._length[shared] == length:
            return shared
        split = self._new(length, dict(self._next[shared]), self._link[shared], self._latest[shared])
        self._link[shared] = split
        while before >= 0 and self._next[before].get(token) == shared:
            self._next[before][token] = split
            before = self._up(before)
        return split

    def _new(self, length: int, following: dict[int, int], link: int, latest: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._latest.append(latest)
        return len(self._link) - 1

    def _up(self, state: int) -> int:
        self.steps += 1
        return self._link[state]
