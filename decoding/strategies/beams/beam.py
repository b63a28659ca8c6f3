"""A sequence of new tokens that shares its beginning with others."""

import attrs

from ...protocols import Finish


@attrs.frozen(eq=False, repr=False)
class Beam:
    """A sequence of new tokens: its last token, and the beam before it."""

    before: "Beam | None"
    """None if there is no token yet."""

    token: int
    token_score: float
    """The token's processed log-probability."""

    total: float
    """The sum of all tokens' scores."""

    length: int
    """The number of new tokens."""

    @classmethod
    def empty(cls) -> "Beam":
        """A beam without new tokens."""
        return cls(None, -1, 0.0, 0.0, 0)

    def extended(self, token: int, token_score: float) -> "Beam":
        """The beam of one more token."""
        return Beam(self, token, token_score, self.total + token_score, self.length + 1)

    def tokens(self) -> list["Beam"]:
        """The beams that end at each new token, in order."""
        found: list[Beam] = []
        beam = self
        while beam.before is not None:
            found.append(beam)
            beam = beam.before
        return found[::-1]


@attrs.frozen(eq=False)
class Hypothesis:
    """A sequence that has ended."""

    beam: Beam
    score: float
    """By which it is compared with the others of its prompt."""

    finish: Finish
    """Why it ended."""

    @property
    def ids(self) -> list[int]:
        """The new tokens."""
        return [beam.token for beam in self.beam.tokens()]
