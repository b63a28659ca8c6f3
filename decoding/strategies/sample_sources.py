"""Where the samples of a fold come from: a generator, or a batcher."""

from collections.abc import Generator as Steps
from contextlib import closing
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs
from attrs import validators

from ..engine.parts import Parts, prompt_rows, seed_of
from ..generator import Generator
from ..optional_protocols import numbered_from
from ..results.events import Event
from ..results.generation import Generation, collect
from ..results.logprobs import Logprobs
from ..results.statistics import Statistics
from ..serving.batcher import Batcher
from ..serving.request_handle import RequestHandle, statistics_of

Samples: TypeAlias = Steps[Event, None, Generation]
"""The events of all samples as they occur, and what they add up to as the value of its ``return``."""


@runtime_checkable
class SampleSource(Protocol):
    """Draws samples of prompts."""

    @property
    def parts(self) -> Parts:
        """Those of every sample."""

    def rows(self, prompts: Any) -> list[list[int]]:
        """The ids of each prompt; raises as a call of a generator."""

    def samples(
        self, rows: list[list[int]], num_samples: int, random_stream: int, logprobs: Logprobs | None
    ) -> Samples:
        """
        Draw, from the first event that is asked for on.

        Args:
            rows: The ids of each prompt.

            num_samples: Samples of each; sample *s* of prompt *p* is row ``p * num_samples + s``.

            random_stream: That of row 0; the others have the numbers after it.

            logprobs: Which log-probabilities to record.
        """


@attrs.frozen(eq=False)
class FromGenerator:
    """Samples by calls of a generator."""

    generator: Generator

    @property
    def parts(self) -> Parts:
        """See :class:`SampleSource`."""
        return self.generator.parts

    def rows(self, prompts: Any) -> list[list[int]]:
        """See :class:`SampleSource`."""
        return prompt_rows(self.generator, prompts, self.generator.decoder.shape)

    def samples(
        self, rows: list[list[int]], num_samples: int, random_stream: int, logprobs: Logprobs | None
    ) -> Samples:
        """See :class:`SampleSource`."""
        generator, seed = self.generator, seed_of(self.generator)
        prompts = [row for row in rows for _ in range(num_samples)]
        streams = range(random_stream, random_stream + len(prompts))
        timers = generator._timers(Statistics())
        events = generator._events(generator._history(prompts, streams, seed), timers, logprobs)

        def collected() -> Samples:
            seen = []
            with closing(events):
                for event in events:
                    seen.append(event)
                    yield event
            return collect(seen, prompts, timers.statistics, seed)

        return collected()


@attrs.frozen(eq=False)
class Batched:
    """
    Samples by requests to a batcher, each sample in a row beside other requests.

    The events of several prompts come prompt by prompt.
    """

    batcher: Batcher = attrs.field(validator=validators.instance_of(Batcher))
    parts: Parts = attrs.field(validator=validators.instance_of(Parts))
    """A generator's :attr:`~..generator.Generator.parts`."""

    options: dict[str, Any] = attrs.field(factory=dict)
    """Further arguments of :meth:`~..serving.batcher.Batcher.submit`: *priority*, *timeout*, *max_unread*."""

    @options.validator
    def _check_options(self, attribute: object, value: dict[str, Any]) -> None:
        if unknown := set(value) - {"priority", "timeout", "max_unread"}:
            raise ValueError(f"'options' must be priority, timeout or max_unread: got {sorted(unknown)}")

    def rows(self, prompts: Any) -> list[list[int]]:
        """See :class:`SampleSource`."""
        return prompt_rows(self.parts, prompts, self.batcher.decoder.shape)

    def _parts_from(self, row: int) -> Parts:
        """The parts of a request whose first row is row *row* of the call."""
        chain = self.parts.processors
        numbered = numbered_from(chain, row)
        return self.parts if numbered is chain else attrs.evolve(self.parts, processors=numbered)

    def samples(
        self, rows: list[list[int]], num_samples: int, random_stream: int, logprobs: Logprobs | None
    ) -> Samples:
        """See :class:`SampleSource`."""
        handles: list[RequestHandle] = []
        seen = []
        try:
            for number, row in enumerate(rows):
                handle = self.batcher.submit(
                    self._parts_from(number * num_samples),
                    row,
                    random_stream=random_stream + number * num_samples,
                    num_samples=num_samples,
                    logprobs=logprobs,
                    **self.options,
                )
                handles.append(handle)
            for number, handle in enumerate(handles):
                for event in handle:
                    seen.append(attrs.evolve(event, row=number * num_samples + event.row))
                    yield seen[-1]
        finally:
            for handle in handles:
                if not handle.done:
                    handle.cancel()
        prompts = [row for row in rows for _ in range(num_samples)]
        for handle in handles:
            # Raises what a part of it raised.
            handle.result()
        statistics = statistics_of(handles) if handles else Statistics()
        seeds = {handle.seed for handle in handles}
        return collect(seen, prompts, statistics, seeds.pop() if len(seeds) == 1 else None)


def as_source(value: Any) -> Any:
    """A generator as a :class:`SampleSource`; anything else unchanged, for a validator."""
    return FromGenerator(value) if isinstance(value, Generator) else value
