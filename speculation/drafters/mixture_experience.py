"""How often guesses stood."""

from collections.abc import Hashable, Sequence

import attrs

_FADE = 0.98
"""What remains of a count after a round: some fifty rounds bear on a rate."""

_PRIOR = 2.0
"""How many guesses an opinion held beforehand is worth."""


@attrs.frozen(eq=False)
class Guess:
    """What was guessed after one row's tokens."""

    kind: Hashable
    """What it is counted with."""

    ids: list[int]
    """-1 ends them."""

    wanted: int
    """How many tokens ahead it was allowed to reach."""

    parents: Sequence[int] | None = None
    """Of a tree, as in :class:`~decodekit.decoding.protocols.Draft`."""

    def against(self, said: Sequence[int]) -> tuple[int, int]:
        """
        How many of them were right in a row, and whether another was wrong, 0 or 1.

        Where *said*, the tokens that were chosen, ends before the guess does, nothing is wrong.
        A guess that ends before it has to is wrong about the token that it leaves out.
        """
        parents = range(-1, len(self.ids) - 1) if self.parents is None else self.parents
        children = {
            (parent, token): child
            for child, (parent, token) in enumerate(zip(parents, self.ids, strict=True))
            if token >= 0
        }
        at, right = -1, 0
        for token in said[: self.wanted]:
            if (at, token) not in children:
                break
            at, right = children[at, token], right + 1
        ended = not any(parent == at for parent, _ in children)
        return right, int(right < self.wanted and (right < len(said) or ended))


@attrs.define(eq=False)
class Experience:
    """Counts of right and wrong guesses by their kind, which fade."""

    _counts: dict[Hashable, tuple[float, float]] = attrs.field(factory=dict)
    """Right ones, and all."""

    def fade(self) -> None:
        """Let a round pass."""
        self._counts = {kind: (right * _FADE, n * _FADE) for kind, (right, n) in self._counts.items()}

    def learn(self, kind: Hashable, right: int, wrong: int) -> None:
        """Hear what became of a guess."""
        before, n = self._counts.get(kind, (0.0, 0.0))
        self._counts[kind] = before + right, n + right + wrong

    def rate(self, kind: Hashable, prior: float) -> float:
        """
        How probable it is that a guess of *kind* is right where those before it are.

        Args:
            kind: As it was counted.

            prior: The opinion that counts where nothing is known.
        """
        right, n = self._counts.get(kind, (0.0, 0.0))
        return (right + _PRIOR * prior) / (n + _PRIOR)


def expected(rate: float, ahead: int) -> float:
    """
    How many of *ahead* guesses stand in the mean, if each does at *rate* where those before it do.

    α + α² + … + αᵏ: Leviathan et al., 2023, `Fast Inference from Transformers via Speculative
    Decoding <https://arxiv.org/abs/2211.17192>`_, equation 1, without the token that always comes.
    """
    return sum(rate**i for i in range(1, ahead + 1))
