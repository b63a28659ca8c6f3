"""
Whether a generator's text has the law that it should have: found out, not estimated.

Everything random asks :mod:`decodekit.decoding.noise`. Here its questions are answered one way
after the other: the generator runs once for each sequence of answers, and what it gives is
counted with the probability of that sequence. That is the exact law of the text, of the very
code that runs in production, for your processors, drafters, verifications and stops:

    >>> import torch
    >>> from decodekit.decoding import MaxNewTokens, Sample
    >>> from decodekit.processors import Temperature
    >>> from decodekit.speculation import DraftModel, Rejection, SpeculativeGenerator
    >>> from decodekit.speculation.exactness import check_exactness
    >>> from decodekit.testing import ScriptedDecoder, last_token
    >>> target = ScriptedDecoder(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), line=last_token)
    >>> draft = ScriptedDecoder(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), line=last_token)
    >>> def make():
    ...     return SpeculativeGenerator(
    ...         target,
    ...         DraftModel(draft),
    ...         num_draft_tokens=2,
    ...         verification=Rejection(),
    ...         processors=Temperature(0.8),
    ...         selection=Sample(),
    ...         stop=MaxNewTokens(2),
    ...     )
    >>> print(check_exactness(make, [0]))
    0.7183  [1, 0] max_new_tokens
    0.1731  [0, 1] max_new_tokens
    0.0590  [1, 1] max_new_tokens
    0.0496  [0, 0] max_new_tokens

The number of sequences grows as the power of everything: two to four tokens of vocabulary, two
to four of text and one to three guesses do to tell right from wrong.

A number is known by its key (stream, position, purpose, index), wherever it is asked for. What
has been answered narrows it down, and what is asked later is answered accordingly: noise that
two places share is shared here too.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from ..decoding import noise
from ..decoding.events import Event
from ..decoding.generation import Generation
from ..decoding.generator import Generator
from ..decoding.history import History
from ..decoding.loop import MAX_LENGTH
from ..decoding.prompts import as_rows, stream_numbers
from ..decoding.protocols import Decoder, Draft, Selection, Verification
from ..decoding.scores import Scores
from ..decoding.slots import Slots
from ..decoding.stopping import begin

NEGLIGIBLE = 1e-15
"""What is less likely is not followed: rounding makes answers that are."""


@attrs.frozen(eq=False)
class Law:
    """Which output comes with which probability."""

    probabilities: dict[Hashable, float]
    """Probabilities above 0, of what ``output`` makes of a generation."""

    paths: int
    """How many runs it took."""

    def expected(self, value: Callable[[Any], float]) -> float:
        """The mean of a function of the output."""
        return sum(p * value(output) for output, p in self.probabilities.items())

    def __str__(self) -> str:
        ordered = sorted(self.probabilities.items(), key=lambda item: -item[1])
        return "\n".join(f"{p:.4f}  {_readable(output)}" for output, p in ordered)


def text_and_endings(generation: Generation) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Each row's new ids, and the reason of its ending."""
    reasons = (ending.reason if ending else "" for ending in generation.endings)
    return tuple((tuple(ids), reason) for ids, reason in zip(generation.ids, reasons, strict=True))


def check_exactness(
    make: Callable[[], Generator], prompts: Any, tolerance: float = 1e-12, copies: int = 1
) -> Law:
    """
    Compare the law of what a generator gives with the chain rule's.

    Args:
        make: Makes the generator, for each run anew, so that what learns as it goes starts
            over. Its decoder may be one and the same. It has to be small; see the module. Its
            selection must draw from the softmax, as ``Sample`` does, and is replaced by
            :class:`InverseTransform`, which has the same law.

        prompts: As in a call of the generator.

        tolerance: The largest total variation allowed.

        copies: How many paths to run side by side, as rows of one batch. Many are quicker by
            far; they need a decoder of copies × prompts rows, parts without a parameter for
            each row, and rows that are independent: not with a length policy that learns.

    Returns:
        The law; ``print`` shows it.

    Raises:
        AssertionError: The laws differ; the message shows the output on which they differ most.

        ValueError: The selection draws from no softmax.

        RuntimeError: Something asks for a number itself rather than :func:`.noise.coin` or
            :func:`.noise.draw`, or answers the same questions in two ways.
    """
    found, expected = law(make, prompts, copies=copies), chain_rule(make, prompts)
    distance = total_variation(found, expected)
    if not distance <= tolerance:
        a, b = found.probabilities, expected.probabilities
        worst = max(a.keys() | b.keys(), key=lambda output: abs(a.get(output, 0.0) - b.get(output, 0.0)))
        raise AssertionError(
            f"the law is off by a total variation of {distance:.3g}, allowed {tolerance:.3g}: "
            f"{_readable(worst)} comes with probability {a.get(worst, 0.0):.6g}, "
            f"expected {b.get(worst, 0.0):.6g}"
        )
    return found


def law(
    make: Callable[[], Generator],
    prompts: Any,
    output: Callable[[Generation], Hashable] = text_and_endings,
    copies: int = 1,
) -> Law:
    """
    The law of what a generator gives.

    Args:
        make: As of :func:`check_exactness`.

        prompts: As in a call of the generator.

        output: What to count, a function of the generation; the rows' ids and endings by default.
            Its statistics are those of all copies together.

        copies: As of :func:`check_exactness`.
    """
    generator = make()
    rows = as_rows(prompts, generator.decoder.shape, generator.tokenizer)
    most = generator.decoder.shape.batch_size // len(rows)
    if not 1 <= copies <= most:
        raise ValueError(f"'copies' must be 1 to {most}, what the decoder has rows for: got {copies}")

    def run(paths: list[_Path]) -> list[Hashable]:
        return [output(generation) for generation in _run(_enumerable(make()), rows, paths)]

    return _law_of(run, copies)


def chain_rule(make: Callable[[], Generator], prompts: Any) -> Law:
    """
    The law of plain decoding: token by token, from the decoder's logits and the processors.

    Of the generator only decoder, processors and stop are used. Arguments as of
    :func:`check_exactness`; rows' ids and endings are what is counted.
    """
    logits = _Logits(make().decoder)

    def run(paths: list[_Path]) -> list[Hashable]:
        generator = make()
        rows = as_rows(prompts, generator.decoder.shape, generator.tokenizer)
        with noise.answered_by(_Oracle(dict.fromkeys(_streams(len(rows)), paths[0]))):
            return [_plainly(generator, rows, logits)]

    return _law_of(run, 1)


def total_variation(first: Law, second: Law) -> float:
    """Half the sum of the absolute differences: 0 for equal laws, 1 for those that share no output."""
    a, b = first.probabilities, second.probabilities
    return sum(abs(a.get(output, 0.0) - b.get(output, 0.0)) for output in a.keys() | b.keys()) / 2


@attrs.frozen(eq=False)
class InverseTransform:
    """
    Draw a token from the softmax of the logits, by one number a position.

    It has the law of :class:`~decodekit.decoding.Sample`, asks what can be enumerated, and
    couples draft and target less closely.
    """

    draws_softmax: ClassVar[bool] = True

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``; all ``-inf`` gives any id."""
        law = _softmax(logits)
        zero = torch.zeros_like(history.length)
        return noise.draw(history.stream[:, None], history.length, noise.TOKEN, zero, law).clamp(min=0)

    def several(self, logits: Tensor, history: History, n: int) -> Tensor:
        """What a call draws, and the likeliest *n* - 1 besides: ``[batch, width, n]``; *n* <= vocab."""
        drawn = self(logits, history)[..., None]
        first = logits.scatter(-1, drawn, torch.inf)
        return first.argsort(dim=-1, descending=True, stable=True)[..., :n]


@attrs.frozen(eq=False)
class _WhereRead(InverseTransform):
    """
    The same for a verification that does not look at the choices of rows with guesses.

    There it gives any token that is left: answers that nobody hears would multiply the paths.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        guessed = history.length[:, -1] > history.length[:, 0]
        asked = torch.where(guessed[:, None, None], -torch.inf, logits)
        return torch.where(guessed[:, None], logits.argmax(dim=-1), super().__call__(asked, history))


@attrs.frozen(eq=False)
class _DraftingAsEver:
    """*verification*, whose drafters draw as ever while the target draws :class:`_WhereRead`."""

    verification: Verification

    @property
    def compares_scores(self) -> bool:
        return getattr(self.verification, "compares_scores", False)

    def drafting(self, selection: Selection, start: Tensor) -> Selection:
        return self.verification.drafting(InverseTransform(), start)

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        return self.verification(draft, choices, scores, window)


def _enumerable(generator: Generator) -> Generator:
    """*generator*, with a selection that can be enumerated."""
    if not getattr(generator.selection, "draws_softmax", False):
        raise ValueError(
            "'selection' must draw from the softmax of the logits, as Sample does: "
            f"got {generator.selection!r}"
        )
    if getattr(generator.verification, "reads_choices", True):
        return attrs.evolve(generator, selection=InverseTransform())
    verification = _DraftingAsEver(generator.verification)
    return attrs.evolve(generator, selection=_WhereRead(), verification=verification)


@attrs.define(eq=False)
class _Path:
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


class _Oracle:
    """Answers each row from its path, until the row has ended."""

    def __init__(self, path_of: dict[int, _Path]) -> None:
        self.path_of = path_of
        """By stream."""

        self.ended: set[int] = set()
        """The streams of rows that have."""

    def folded(self, stream: int, result: int) -> None:
        self.path_of[result] = self._of(stream)
        if stream in self.ended:
            self.ended.add(result)

    def coin(self, key: tuple[int, ...], probability: float) -> bool:
        # NaN is above nothing.
        if key[0] in self.ended or not probability > 0:
            return False
        return self._of(key[0]).cell(key, [0.0, min(probability, 1.0), 1.0]) == 0

    def draw(self, key: tuple[int, ...], weights: Sequence[float]) -> int:
        if key[0] in self.ended:
            return max(range(len(weights)), key=weights.__getitem__)
        partial = list(itertools.accumulate(weights, initial=0.0))
        return self._of(key[0]).cell(key, [total / partial[-1] for total in partial])

    def _of(self, stream: int) -> _Path:
        if stream not in self.path_of:
            raise RuntimeError("noise was asked for a stream that is no row's")
        return self.path_of[stream]


def _streams(rows: int) -> list[int]:
    """The random streams of so many rows."""
    numbers: list[int] = noise.streams(stream_numbers(None, rows), 0).tolist()
    return numbers


def _law_of(run: Callable[[list[_Path]], list[Hashable]], copies: int) -> Law:
    """The law of what *run* gives for a path, over all paths, so many at a time."""
    probabilities: dict[Hashable, float] = {}
    paths, pending = 0, [list[int]()]
    while pending:
        now, pending = [_Path(answers) for answers in pending[-copies:]], pending[:-copies]
        for path, output in zip(now, run(now), strict=True):
            probabilities[output] = probabilities.get(output, 0.0) + path.probability
            pending += path.others()
        paths += len(now)
    return Law(probabilities, paths)


@attrs.frozen(eq=False)
class _Ends:
    """A streamer that tells the oracle which rows have ended."""

    oracle: _Oracle
    streams: list[int]

    def put_event(self, event: Event) -> None:
        if event.ending is not None:
            self.oracle.ended.add(self.streams[event.row])

    def end(self) -> None:
        pass


def _run(generator: Generator, prompts: list[list[int]], paths: list[_Path]) -> list[Generation]:
    """What comes of each path: rows of one batch."""
    streams, n = _streams(len(paths) * len(prompts)), len(prompts)
    oracle = _Oracle({stream: paths[row // n] for row, stream in enumerate(streams)})
    with noise.answered_by(oracle):
        all_rows = generator(prompts * len(paths), streamer=_Ends(oracle, streams))
    return [
        attrs.evolve(
            all_rows,
            prompts=prompts,
            ids=all_rows.ids[i * n : (i + 1) * n],
            text=None if all_rows.text is None else all_rows.text[i * n : (i + 1) * n],
            endings=all_rows.endings[i * n : (i + 1) * n],
        )
        for i in range(len(paths))
    ]


class _Logits:
    """What a decoder says after a prefix that it has been fed token by token."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._known: dict[tuple[int, ...], Tensor] = {}

    def after(self, prefix: Sequence[int]) -> Tensor:
        """Logits ``[vocab]``."""
        if (logits := self._known.get(tuple(prefix))) is None:
            with Slots.of(self._decoder).lock, torch.no_grad():
                logits = self._known[tuple(prefix)] = self._fed(prefix)
                Slots.of(self._decoder).forget()
        return logits

    def _fed(self, prefix: Sequence[int]) -> Tensor:
        shape = self._decoder.shape
        for position, token in enumerate(prefix):
            ids = torch.full((shape.batch_size, shape.widths[0]), -1)
            cache_pos = torch.zeros(shape.batch_size, dtype=torch.int64)
            # The last column is scored in every width.
            ids[0, -1], cache_pos[0] = token, position - shape.widths[0] + 1
            logits = self._decoder.forward(ids, cache_pos)
        return logits[0, -1].float().clone()


def _plainly(generator: Generator, rows: list[list[int]], logits: _Logits) -> Hashable:
    """One run of plain decoding, written out."""
    texts, endings = [list(row) for row in rows], [""] * len(rows)
    stop, capacity = begin(generator.stop), generator.decoder.shape.max_length + 1
    while "" in endings:
        going = [row for row, ending in enumerate(endings) if not ending]
        history = _history(texts, rows, capacity)
        scores = torch.stack([logits.after(text[: capacity - 1]) for text in texts])[:, None]
        if generator.processors is not None:
            scores = generator.processors(scores, history)
        for row in going:
            key = history.stream[row], history.length[row, 0], noise.TOKEN, torch.tensor(0)
            if (token := int(noise.draw(*key, _softmax(scores[row, 0])))) >= 0:
                texts[row].append(token)
            else:
                endings[row] = "no_token_left"
        codes = stop(Scores(functools.partial(_same, scores)), _history(texts, rows, capacity))
        for row in going:
            if not endings[row] and codes[row, 0]:
                endings[row] = stop.endings[int(codes[row, 0]) - 1].reason
            elif not endings[row] and len(texts[row]) == capacity:
                endings[row] = MAX_LENGTH.reason
    new = (tuple(text[len(row) :]) for text, row in zip(texts, rows, strict=True))
    return tuple(zip(new, endings, strict=True))


def _same(scores: Tensor) -> Tensor:
    return scores


def _history(texts: list[list[int]], prompts: list[list[int]], capacity: int) -> History:
    """The history of rows that have come to *texts*."""
    ids = torch.zeros(len(texts), 1, capacity, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, 0, : len(text)] = torch.tensor(text)
    length = torch.tensor([[len(text)] for text in texts])
    prompt = torch.tensor([len(row) for row in prompts])
    return History(ids, length, prompt, torch.tensor(_streams(len(texts))))


def _softmax(logits: Tensor) -> Tensor:
    """In double precision, and 0 where no token is left. Its own: it checks those of others."""
    return logits.double().softmax(dim=-1).nan_to_num(nan=0.0)


def _readable(output: Hashable) -> str:
    if not isinstance(output, tuple):
        return str(output)
    return ", ".join(f"{list(row[0])} {row[1]}" if _is_row(row) else str(row) for row in output)


def _is_row(row: object) -> bool:
    return isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], tuple)
