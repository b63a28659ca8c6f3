"""Every way in which chance could fall, one after the other."""

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence

import attrs

from ...decoding.sampling import noise
from ...decoding.validation import stream_numbers
from .exact_distribution import Distribution

NEGLIGIBLE = 1e-15
"""What is less likely is not followed: rounding makes answers that are."""


@attrs.define(eq=False)
class Path:
    """One sequence of answers: the given ones as far as they go, and then the first possible each time."""

    answers: list[int]
    taken: list[int] = attrs.field(factory=list, init=False)
    possible: list[int] = attrs.field(factory=list, init=False)
    """How many answers there were each time."""

    probability: float = attrs.field(default=1.0, init=False)
    known: dict[Hashable, tuple[float, float]] = attrs.field(factory=dict, init=False)
    """Between which bounds the number of each key lies."""

    def cell(self, key: Hashable, bounds: Sequence[float]) -> int:
        """In which cell between *bounds* the number of *key* lies."""
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
        """What else could have been answered, after the given answers."""
        if self.taken[: len(self.answers)] != self.answers:
            raise RuntimeError(_IMPURE)
        for depth in range(len(self.answers), len(self.taken)):
            for answer in range(1, self.possible[depth]):
                yield [*self.taken[:depth], answer]


_IMPURE = "the same answers led to other questions: something is no function of a row's own tokens"


class Oracle:
    """Answers each row from its path, until the row has ended."""

    def __init__(self, path_of: dict[int, Path]) -> None:
        self.path_of = path_of
        """By stream."""

        self.ended: set[int] = set()
        """The streams of rows that have."""

    def folded(self, stream: int, result: int) -> None:
        """A number was folded into a stream: the *result* is answered from the same path."""
        self.path_of[result] = self._of(stream)
        if stream in self.ended:
            self.ended.add(result)

    def coin(self, key: tuple[int, ...], probability: float) -> bool:
        """Whether the number of *key* is below *probability*."""
        # NaN is above nothing.
        if key[0] in self.ended or not probability > 0:
            return False
        return self._of(key[0]).cell(key, [0.0, min(probability, 1.0), 1.0]) == 0

    def draw(self, key: tuple[int, ...], weights: Sequence[float]) -> int:
        """Which of *weights* the number of *key* falls on."""
        if key[0] in self.ended:
            return max(range(len(weights)), key=weights.__getitem__)
        partial = list(itertools.accumulate(weights, initial=0.0))
        return self._of(key[0]).cell(key, [total / partial[-1] for total in partial])

    def _of(self, stream: int) -> Path:
        if stream not in self.path_of:
            raise RuntimeError("noise was asked for a stream that is no row's")
        return self.path_of[stream]


def streams_of(rows: int) -> list[int]:
    """The random streams of so many rows."""
    numbers: list[int] = noise.random_streams(stream_numbers(None, rows), 0).tolist()
    return numbers


def distribution_of(run: Callable[[list[Path]], list[Hashable]], copies: int) -> Distribution:
    """The distribution of what *run* gives for a path, over all paths, so many at a time."""
    probabilities: dict[Hashable, float] = {}
    paths, pending = 0, [list[int]()]
    while pending:
        now, pending = [Path(answers) for answers in pending[-copies:]], pending[:-copies]
        for path, output in zip(now, run(now), strict=True):
            probabilities[output] = probabilities.get(output, 0.0) + path.probability
            pending += path.others()
        paths += len(now)
    return Distribution(probabilities, paths)
