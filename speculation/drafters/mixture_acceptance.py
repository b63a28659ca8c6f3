"""Acceptance statistics of a mixture's drafters."""

from collections.abc import Hashable, Sequence

import attrs

_DECAY = 0.98
"""Decay of a count per step: about fifty steps contribute to a rate."""

_PRIOR_WEIGHT = 2.0
"""Weight of the prior, in draft tokens."""


@attrs.frozen(eq=False)
class PastDraft:
    """Draft of one row, kept until the row's next tokens are known."""

    kind: Hashable
    """Key under which it is counted."""

    ids: list[int]
    """Draft tokens; -1 ends them."""

    wanted: int
    """Maximum draft length."""

    parents: Sequence[int] | None = None
    """As in :class:`~decodekit.decoding.protocols.Draft`; None for a chain."""

    def outcome(self, generated: Sequence[int]) -> tuple[int, int]:
        """
        Count the leading correct draft tokens, and whether a wrong one follows, 0 or 1.

        If *generated*, the actual tokens, ends before the draft, nothing is wrong. A draft shorter
        than allowed is wrong about the token after it.
        """
        parents = range(-1, len(self.ids) - 1) if self.parents is None else self.parents
        children = {
            (parent, token): child
            for child, (parent, token) in enumerate(zip(parents, self.ids, strict=True))
            if token >= 0
        }
        at, right = -1, 0
        for token in generated[: self.wanted]:
            if (at, token) not in children:
                break
            at, right = children[at, token], right + 1
        ended = not any(parent == at for parent, _ in children)
        return right, int(right < self.wanted and (right < len(generated) or ended))


@attrs.define(eq=False)
class AcceptanceCounts:
    """Exponentially decaying counts of correct and wrong draft tokens, by kind."""

    _counts: dict[Hashable, tuple[float, float]] = attrs.field(factory=dict)
    """Correct ones, and all."""

    def decay(self) -> None:
        """Apply one step's decay."""
        self._counts = {kind: (right * _DECAY, n * _DECAY) for kind, (right, n) in self._counts.items()}

    def learn(self, kind: Hashable, right: int, wrong: int) -> None:
        """Count the outcome of a draft."""
        before, n = self._counts.get(kind, (0.0, 0.0))
        self._counts[kind] = before + right, n + right + wrong

    def rate(self, kind: Hashable, prior: float) -> float:
        """
        Probability that a draft token of *kind* is correct, given that those before it are.

        Args:
            kind: Key as in :meth:`learn`.

            prior: Rate assumed without observations.
        """
        right, n = self._counts.get(kind, (0.0, 0.0))
        return (right + _PRIOR_WEIGHT * prior) / (n + _PRIOR_WEIGHT)


def expected_accepted(rate: float, ahead: int) -> float:
    """
    Expected number of accepted tokens of *ahead*, each accepted at *rate* given those before it.

    α + α² + … + αᵏ: Leviathan et al., 2023, `Fast Inference from Transformers via Speculative
    Decoding <https://arxiv.org/abs/2211.17192>`_, equation 1, without the bonus token.
    """
    return sum(rate**i for i in range(1, ahead + 1))
