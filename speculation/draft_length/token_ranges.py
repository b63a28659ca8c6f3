"""The numbers of tokens whose forwards are timed, and where other numbers lie between them."""

from collections.abc import Callable

import attrs


@attrs.frozen
class Place:
    """An average number of tokens between two that are timed, which may be one."""

    fewest: int
    most: int
    share: float
    """Of :attr:`most`, from 0 to 1."""

    learned: int
    """The number, of the forward's own width, that its time is learned for."""

    def between(self, seconds: Callable[[int], float]) -> float:
        """The *seconds* of the two, weighted."""
        if self.fewest == self.most:
            return seconds(self.most)
        return (1 - self.share) * seconds(self.fewest) + self.share * seconds(self.most)


@attrs.frozen(eq=False)
class TokenRanges:
    """
    The timed tokens of each width.

    The row with the longest draft selects the width; tokens are the average of all rows, and where that is
    below the fewest of the width, a line to the plain step applies.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    """The fewest and the most tokens of each width, ascending; the same where padding takes as long."""

    skips_padding: bool = False
    """Whether a forward's time depends on its tokens."""

    _places: dict[int, Place] = attrs.field(factory=dict, init=False, repr=False)
    """By draft length, where all rows have it."""

    def of(self, length: int) -> tuple[int, int]:
        """The range of the width that drafts of *length* tokens need."""
        fitting = (each for each in self.ranges if each[1] > length)
        return next(fitting, self.ranges[-1] if self.ranges else (length + 1, length + 1))

    def place(self, length: int) -> Place:
        """Where a step lies in which the draft of each row has *length* tokens."""
        place = self._places.get(length)
        if place is None:
            place = self._places[length] = self.place_of(length, length + 1)
        return place

    def place_of(self, length: int, tokens: float) -> Place:
        """Where a step lies whose longest draft has *length* tokens, and whose rows *tokens* on average."""
        fewest, most = self.of(length)
        if not self.skips_padding or fewest == most <= tokens:
            return Place(most, most, 1.0, most)
        if tokens < fewest:
            return Place(1, fewest, (tokens - 1) / (fewest - 1), fewest)
        share = min((tokens - fewest) / (most - fewest), 1.0)
        return Place(fewest, most, share, most if share >= 0.5 else fewest)
