"""
Whether a generator's text has the distribution that it should have: found out, not estimated.

Everything random asks :mod:`decodekit.decoding.sampling.noise`. Here its questions are answered one way
after the other: the generator runs once for each sequence of answers, and what it gives is
counted with the probability of that sequence. That is the exact distribution of the text, of the very
code that runs in production, for your processors, drafters, verifications and stops:

    >>> import torch
    >>> from decodekit.decoding import MaxNewTokens, Sample
    >>> from decodekit.processors import Temperature
    >>> from decodekit.speculation import DraftModel, Rejection, SpeculativeGenerator
    >>> from decodekit.speculation.exactness.exactness import check_exactness
    >>> from decodekit.testing import ScriptedDecoder, last_token
    >>> target = ScriptedDecoder(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), line=last_token)
    >>> draft = ScriptedDecoder(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), line=last_token)
    >>> def make():
    ...     return SpeculativeGenerator(
    ...         target,
    ...         DraftModel(draft),
    ...         num_draft_tokens=2,
    ...         verification=RejectionSampling(),
    ...         processors=Temperature(0.8),
    ...         sampler=Sample(),
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

from collections.abc import Callable, Hashable
from typing import Any

import attrs

from ...decoding.generator import Generator
from ...decoding.prompts import as_rows
from ...decoding.results.events import Event
from ...decoding.results.generation import Generation
from ...decoding.sampling import noise
from .enumeration import Oracle, Path, distribution_of, streams_of
from .exact_distribution import Distribution, readable, total_variation
from .inverse_transform import InverseTransform, enumerable
from .plain_decoding import Logits, decode_plainly

__all__ = [
    "Distribution",
    "InverseTransform",
    "chain_rule",
    "check_exactness",
    "distribution",
    "text_and_endings",
    "total_variation",
]


def text_and_endings(generation: Generation) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Each row's new ids, and the reason of its ending."""
    reasons = (finish.reason if finish else "" for finish in generation.finishes)
    return tuple((tuple(ids), reason) for ids, reason in zip(generation.ids, reasons, strict=True))


def check_exactness(
    make: Callable[[], Generator], prompts: Any, tolerance: float = 1e-12, copies: int = 1
) -> Distribution:
    """
    Compare the distribution of what a generator gives with the chain rule's.

    Args:
        make: Makes the generator, for each run anew, so that what learns as it goes starts
            over. Its decoder may be one and the same. It has to be small; see the module. Its
            sampler must draw from the softmax, as ``Sample`` does, and is replaced by
            :class:`InverseTransform`, which has the same distribution.

        prompts: As in a call of the generator.

        tolerance: The largest total variation allowed.

        copies: How many paths to run side by side, as rows of one batch. Many are quicker by
            far; they need a decoder of copies × prompts rows, parts without a parameter for
            each row, and rows that are independent: not with a length policy that learns.

    Returns:
        The distribution; ``print`` shows it.

    Raises:
        AssertionError: The distributions differ; the message shows the output on which they differ most.

        ValueError: The sampler draws from no softmax.

        RuntimeError: Something asks for a number itself rather than :func:`...noise.coin` or
            :func:`...noise.draw`, or answers the same questions in two ways.
    """
    found, expected = distribution(make, prompts, copies=copies), chain_rule(make, prompts)
    distance = total_variation(found, expected)
    if not distance <= tolerance:
        a, b = found.probabilities, expected.probabilities
        worst = max(a.keys() | b.keys(), key=lambda output: abs(a.get(output, 0.0) - b.get(output, 0.0)))
        raise AssertionError(
            f"the distribution is off by a total variation of {distance:.3g}, allowed {tolerance:.3g}: "
            f"{readable(worst)} comes with probability {a.get(worst, 0.0):.6g}, "
            f"expected {b.get(worst, 0.0):.6g}"
        )
    return found


def distribution(
    make: Callable[[], Generator],
    prompts: Any,
    output: Callable[[Generation], Hashable] = text_and_endings,
    copies: int = 1,
) -> Distribution:
    """
    The distribution of what a generator gives.

    Args:
        make: As of :func:`check_exactness`.

        prompts: As in a call of the generator.

        output: What to count, a function of the generation; the rows' ids and finishes by default.
            Its statistics are those of all copies together.

        copies: As of :func:`check_exactness`.
    """
    generator = make()
    rows = as_rows(prompts, generator.decoder.shape, generator.tokenizer)
    most = generator.decoder.shape.batch_size // len(rows)
    if not 1 <= copies <= most:
        raise ValueError(f"'copies' must be 1 to {most}, what the decoder has rows for: got {copies}")

    def run(paths: list[Path]) -> list[Hashable]:
        return [output(generation) for generation in run_paths(enumerable(make()), rows, paths)]

    return distribution_of(run, copies)


def chain_rule(make: Callable[[], Generator], prompts: Any) -> Distribution:
    """
    The distribution of plain decoding: token by token, from the decoder's logits and the processors.

    Of the generator only decoder, processors and stop are used. Arguments as of
    :func:`check_exactness`; rows' ids and finishes are what is counted.
    """
    logits = Logits(make().decoder)

    def run(paths: list[Path]) -> list[Hashable]:
        generator = make()
        rows = as_rows(prompts, generator.decoder.shape, generator.tokenizer)
        with noise.answered_by(Oracle(dict.fromkeys(streams_of(len(rows)), paths[0]))):
            return [decode_plainly(generator, rows, logits)]

    return distribution_of(run, 1)


@attrs.frozen(eq=False)
class _Ends:
    """A streamer that tells the oracle which rows have ended."""

    oracle: Oracle
    random_streams: list[int]

    def put_event(self, event: Event) -> None:
        if event.finish is not None:
            self.oracle.ended.add(self.random_streams[event.row])

    def end(self) -> None:
        pass


def run_paths(generator: Generator, prompts: list[list[int]], paths: list[Path]) -> list[Generation]:
    """What comes of each path: rows of one batch."""
    random_streams, n = streams_of(len(paths) * len(prompts)), len(prompts)
    oracle = Oracle({stream: paths[row // n] for row, stream in enumerate(random_streams)})
    with noise.answered_by(oracle):
        all_rows = generator(prompts * len(paths), streamer=_Ends(oracle, random_streams))
    return [
        attrs.evolve(
            all_rows,
            prompts=prompts,
            ids=all_rows.ids[i * n : (i + 1) * n],
            text=None if all_rows.text is None else all_rows.text[i * n : (i + 1) * n],
            finishes=all_rows.finishes[i * n : (i + 1) * n],
        )
        for i in range(len(paths))
    ]
