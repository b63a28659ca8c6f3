"""Enumeration of all random outcomes of a generation."""

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence

import attrs

from ...decoding.sampling import noise
from ...decoding.validation import stream_numbers
from .exact_distribution import ExactDistribution

NEGLIGIBLE = 1e-15
"""Outcomes below this probability are artefacts of rounding, and skipped."""


@attrs.define(eq=False)
class Path:
    """One sequence of random outcomes: the given answers, then the first possible one each time."""

    answers: list[int]
    taken: list[int] = attrs.field(factory=list, init=False)
    possible: list[int] = attrs.field(factory=list, init=False)
    """Number of possible answers at each query."""

    probability: float = attrs.field(default=1.0, init=False)
    known: dict[Hashable, tuple[float, float]] = attrs.field(factory=dict, init=False)
    """Bounds of the uniform number of each key."""

    def cell(self, key: Hashable, bounds: Sequence[float]) -> int:
        """Cell between *bounds* that contains the uniform number of *key*."""
        low, high = self.known.get(key, (0.0, 1.0))
        cells = [
            (i, max(low, a), min(high, b))
            for i, (a, b) in enumerate(itertools.pairwise(bounds))
            if min(high, b) - max(low, a) > NEGLIGIBLE
        ]
        answer = 0
        if len(cells) > 1:
            answer = self.answers[len(self.taken)] if len(self.taken) < len(self.answers) else 0
            self.taken.append(answer)
            self.possible.append(len(cells))
        if answer >= len(cells):
            raise RuntimeError(_IMPURE)
        i, a, b = cells[answer]
        self.probability *= (b - a) / (high - low)
        self.known[key] = (a, b)
        return i

    def others(self) -> Iterator[list[int]]:
        """Alternative answers after the given ones."""
        if self.taken[: len(self.answers)] != self.answers:
            raise RuntimeError(_IMPURE)
        for depth in range(len(self.answers), len(self.taken)):
            for answer in range(1, self.possible[depth]):
                yield [*self.taken[:depth], answer]


_IMPURE = "the same answers led to other questions: something is not a function of a row's own tokens"


class Oracle:
    """Noise source that answers each row from its path, until the row has ended."""

    def __init__(self, path_of: dict[int, Path]) -> None:
        self.path_of = path_of
        """Path by random stream."""

        self.ended: set[int] = set()
        """Random streams of ended rows."""

    def folded(self, stream: int, result: int) -> None:
        """Answer the stream *result*, folded from *stream*, from the same path."""
        self.path_of[result] = self._of(stream)
        if stream in self.ended:
            self.ended.add(result)

    def coin(self, key: tuple[int, ...], probability: float) -> bool:
        """Whether the uniform number of *key* is below *probability*."""
        # Also False for NaN.
        if key[0] in self.ended or not probability > 0:
            return False
        return self._of(key[0]).cell(key, [0.0, min(probability, 1.0), 1.0]) == 0

    def draw(self, key: tuple[int, ...], weights: Sequence[float]) -> int:
        """Index drawn from *weights* by the uniform number of *key*."""
        if key[0] in self.ended:
            return max(range(len(weights)), key=weights.__getitem__)
        partial = list(itertools.accumulate(weights, initial=0.0))
        return self._of(key[0]).cell(key, [total / partial[-1] for total in partial])

    def _of(self, stream: int) -> Path:
        if stream not in self.path_of:
            raise RuntimeError("noise was asked for a stream that is no row's")
        return self.path_of[stream]


def streams_of(rows: int) -> list[int]:
    """Random streams of *rows* rows."""
    numbers: list[int] = noise.random_streams(stream_numbers(None, rows), 0).tolist()
    return numbers


def distribution_over_paths(run: Callable[[list[Path]], list[Hashable]], copies: int) -> ExactDistribution:
    """Distribution of the output of *run* over all paths, *copies* paths at a time."""
    probabilities: dict[Hashable, float] = {}
    paths, pending = 0, [list[int]()]
    while pending:
        now, pending = [Path(answers) for answers in pending[-copies:]], pending[:-copies]
        for path, output in zip(now, run(now), strict=True):
            probabilities[output] = probabilities.get(output, 0.0) + path.probability
            pending += path.others()
        paths += len(now)
    return ExactDistribution(probabilities, paths)
