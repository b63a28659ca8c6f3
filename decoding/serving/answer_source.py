"""Where the answers of a session come from: a generator, or a batcher."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import attrs

from ..engine.parts import Parts
from ..generator import Generator
from ..protocols import DecoderShape
from ..results.events import EventStream
from ..results.statistics import Statistics
from .batcher import Batcher
from .row_pin import RowPin

Counted: TypeAlias = Callable[[Statistics], None]
"""Is told of an answer's statistics when it has ended or was closed."""


class AnswerSource(Protocol):
    """Generates from one prompt at a time."""

    @property
    def parts(self) -> Parts:
        """The parts of every answer."""
        ...

    @property
    def shape(self) -> DecoderShape:
        """The decoder's shapes."""
        ...

    def stream(self, prompt: Sequence[int], random_stream: int, counted: Counted) -> EventStream:
        """The events of an answer to *prompt*; nothing happens before the first is requested."""
        ...

    def release(self) -> None:
        """Give up what is kept between answers."""
        ...


@attrs.frozen(eq=False)
class FromGenerator:
    """Answers of a generator, always in the first row of its decoder."""

    parts: Generator

    @property
    def shape(self) -> DecoderShape:
        """See :class:`AnswerSource`."""
        return self.parts.decoder.shape

    def stream(self, prompt: Sequence[int], random_stream: int, counted: Counted) -> EventStream:
        """See :class:`AnswerSource`."""
        statistics = Statistics()
        try:
            yield from self.parts.stream([list(prompt)], [random_stream], statistics=statistics)
        finally:
            counted(statistics)

    def release(self) -> None:
        """See :class:`AnswerSource`."""


@attrs.frozen(eq=False)
class FromBatcher:
    """Answers of a batcher, in a row that is held between them."""

    batcher: Batcher
    parts: Parts
    pin: RowPin = attrs.field(factory=RowPin)

    @property
    def shape(self) -> DecoderShape:
        """See :class:`AnswerSource`."""
        return self.batcher.decoder.shape

    def stream(self, prompt: Sequence[int], random_stream: int, counted: Counted) -> EventStream:
        """See :class:`AnswerSource`."""
        handle = self.batcher.submit(self.parts, list(prompt), random_stream=random_stream, pin=self.pin)
        try:
            yield from handle
        finally:
            # No effect after its end.
            handle.cancel()
            counted(handle.statistics)

    def release(self) -> None:
        """See :class:`AnswerSource`."""
        self.pin.release()


def source_of(server: Any, parts: Parts | None) -> AnswerSource:
    """
    The answers of *server*.

    Args:
        server: A generator, or a batcher.

        parts: For a batcher, the parts of the answers; None for a generator, which has its own.

    Raises:
        TypeError: It is neither, or *parts* are missing or too many.
    """
    if isinstance(server, Generator):
        if parts is not None:
            raise TypeError(f"'parts' must be None with a generator, which has its own: got {parts!r}")
        return FromGenerator(server)
    if not isinstance(server, Batcher):
        raise TypeError(f"a session must have a Generator or a Batcher: got {server!r}")
    if not isinstance(parts, Parts):
        raise TypeError(f"'parts' must be a generator's .parts with a batcher: got {parts!r}")
    return FromBatcher(server, parts)
