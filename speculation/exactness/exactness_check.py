"""
Exact comparison of a generator's output distribution with that of plain decoding.

All randomness comes from :mod:`decodekit.decoding.sampling.noise`. Here every possible outcome of
its draws is enumerated: the generator runs once for each sequence of outcomes, and its output is
counted with the probability of that sequence. The result is the exact distribution of the text, from
the production code, for your processors, drafters, verifications and stops:

    >>> import torch
    >>> from decodekit.decoding import MaxNewTokens, Sample
    >>> from decodekit.processors import Temperature
    >>> from decodekit.speculation import DraftModel, RejectionSampling, SpeculativeGenerator
    >>> from decodekit.speculation.exactness.exactness_check import check_exactness
    >>> from decodekit.testing import ScriptedDecoder, last_token
    >>> target = ScriptedDecoder(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), line=last_token)
    >>> draft = ScriptedDecoder(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), line=last_token)
    >>> def make():
    ...     return SpeculativeGenerator(
    ...         target,
    ...         DraftModel(draft),
    ...         num_draft_tokens=1,
    ...         verification=RejectionSampling(),
    ...         processors=Temperature(0.8),
    ...         sampler=Sample(),
    ...         stop=MaxNewTokens(3),
    ...     )
    >>> print(check_exactness(make, [0]))
    0.5584  [1, 0, 1] max_new_tokens
    0.1600  [0, 1, 0] max_new_tokens
    0.1600  [1, 0, 0] max_new_tokens
    0.0545  [1, 1, 0] max_new_tokens
    0.0386  [0, 0, 1] max_new_tokens
    0.0131  [0, 1, 1] max_new_tokens
    0.0110  [0, 0, 0] max_new_tokens
    0.0045  [1, 1, 1] max_new_tokens

The number of sequences grows exponentially; a vocabulary of two to four tokens, texts of three to
five and drafts of one to three tokens are enough to detect errors. The first token of a text is not
drafted, nor is the last one under a limit.

A uniform number is identified by its key (stream, position, purpose, index). Each outcome narrows
its interval, and later uses of the same key are answered consistently: noise shared by two uses is
shared here too.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any

import attrs

from ...decoding.generator import Generator
from ...decoding.prompts import as_rows
from ...decoding.results.events import Event
from ...decoding.results.generation import Generation
from ...decoding.sampling import noise
from ...decoding.validation import as_real, is_whole
from .enumeration import Oracle, Path, distribution_over_paths, streams_of
from .exact_distribution import ExactDistribution, readable, total_variation
from .inverse_transform import InverseTransform, enumerable
from .plain_decoding import Logits, decode_plainly

__all__ = [
    "ExactDistribution",
    "InverseTransform",
    "chain_rule",
    "check_exactness",
    "ids_and_finish_reasons",
    "output_distribution",
    "total_variation",
]


def ids_and_finish_reasons(generation: Generation) -> tuple[tuple[tuple[int, ...], str], ...]:
    """New ids and finish reason of each row."""
    reasons = (finish.reason if finish else "" for finish in generation.finishes)
    return tuple((tuple(ids), reason) for ids, reason in zip(generation.ids, reasons, strict=True))


def check_exactness(
    make: Callable[[], Generator], prompts: Any, tolerance: float = 1e-12, copies: int = 1
) -> ExactDistribution:
    """
    Compare a generator's output distribution with that of plain decoding (the chain rule).

    Args:
        make: Returns a new generator for each run, so that learned state starts afresh; the
            decoder may be shared. It has to be small; see the module. Its sampler must draw from
            the softmax, as ``Sample`` does, and is replaced by :class:`InverseTransform`, which has
            the same distribution.

        prompts: As in a call of the generator.

        tolerance: Maximum total variation.

        copies: Number of paths to run as rows of one batch. More are much faster, but need a decoder
            of copies × prompts rows, parts without per-row parameters, and independent rows: not
            with an adaptive draft length.

    Returns:
        The distribution; ``str()`` lists it by probability.

    Raises:
        AssertionError: The distributions differ; the message shows the output with the largest difference.

        TypeError: *make* is no function, or returns no generator.

        ValueError: The sampler does not draw from the softmax, or an option is out of range.

        RuntimeError: A part uses noise other than by :func:`...decoding.sampling.noise.coin` and ``draw``,
            or is not deterministic given the noise.
    """
    if not callable(make):
        raise TypeError(f"'make' must be a function that returns a Generator: got {make!r}")
    if not isinstance(as_real(tolerance), float) or not 0 <= as_real(tolerance) < math.inf:
        raise ValueError(f"'tolerance' must be a number >= 0, and finite: got {tolerance!r}")
    if not is_whole(copies):
        raise TypeError(f"'copies' must be a whole number: got {copies!r}")
    found, expected = output_distribution(make, prompts, copies=copies), chain_rule(make, prompts)
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


def output_distribution(
    make: Callable[[], Generator],
    prompts: Any,
    output: Callable[[Generation], Hashable] = ids_and_finish_reasons,
    copies: int = 1,
) -> ExactDistribution:
    """
    Exact distribution of a generator's output.

    Args:
        make: As in :func:`check_exactness`.

        prompts: As in a call of the generator.

        output: Function of the generation whose values are counted; ids and finish reasons of the rows
            by default. The generation's statistics are those of all copies together.

        copies: As in :func:`check_exactness`.
    """
    generator = make()
    if not isinstance(generator, Generator):
        raise TypeError(f"'make' must return a Generator: got {generator!r}")
    rows = as_rows(prompts, generator.decoder.shape, generator.tokenizer, start=generator.start_token)
    most = generator.decoder.shape.batch_size // len(rows)
    if not 1 <= copies <= most:
        raise ValueError(f"'copies' must be 1 to {most}, what the decoder has rows for: got {copies}")

    def run(paths: list[Path]) -> list[Hashable]:
        return [output(generation) for generation in run_paths(enumerable(make()), rows, paths)]

    return distribution_over_paths(run, copies)


def chain_rule(make: Callable[[], Generator], prompts: Any) -> ExactDistribution:
    """
    Exact distribution of plain decoding, token by token from the decoder's logits and the processors.

    Only the generator's decoder, processors and stop are used. Arguments as in
    :func:`check_exactness`; the rows' ids and finish reasons are counted.
    """
    logits = Logits(make().decoder)

    def run(paths: list[Path]) -> list[Hashable]:
        generator = make()
        rows = as_rows(prompts, generator.decoder.shape, generator.tokenizer, start=generator.start_token)
        with noise.answered_by(Oracle(dict.fromkeys(streams_of(len(rows)), paths[0]))):
            return [decode_plainly(generator, rows, logits)]

    return distribution_over_paths(run, 1)


@attrs.frozen(eq=False)
class _FinishRecorder:
    """Streamer that marks ended rows in the oracle."""

    oracle: Oracle
    random_streams: list[int]

    def put_event(self, event: Event) -> None:
        if event.finish is not None:
            self.oracle.ended.add(self.random_streams[event.row])

    def end(self) -> None:
        pass


def run_paths(generator: Generator, prompts: list[list[int]], paths: list[Path]) -> list[Generation]:
    """Run all paths as rows of one batch; one generation per path."""
    random_streams, n = streams_of(len(paths) * len(prompts)), len(prompts)
    oracle = Oracle({stream: paths[row // n] for row, stream in enumerate(random_streams)})
    with noise.answered_by(oracle):
        all_rows = generator(prompts * len(paths), streamer=_FinishRecorder(oracle, random_streams))
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
