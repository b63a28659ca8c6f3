"""The reader's side of a queue streamer: iteration in a thread, or in a task of an event loop."""

import abc
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar

from ..decoding.results.events import Event
from .event_queue import EventQueue

Item = TypeVar("Item")


class QueueReader(abc.ABC, Generic[Item]):
    """What a reader gets of each event, and how long it waits."""

    _queue: EventQueue
    timeout: float | None

    @abc.abstractmethod
    def _item(self, event: Event) -> Item:
        """What the reader gets of *event*."""


class ThreadReader(QueueReader[Item]):
    """An iterator and context manager for a reader in a thread."""

    def __iter__(self) -> Iterator[Item]:
        """Iterate to the end; leaving the loop early closes this iterator."""
        try:
            while (event := self._queue.take(self.timeout)) is not None:
                yield self._item(event)
        finally:
            self.close()

    def __next__(self) -> Item:
        event = self._queue.take(self.timeout)
        if event is None:
            raise StopIteration
        return self._item(event)

    def close(self) -> None:
        """Stop reading; the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TaskReader(QueueReader[Item]):
    """An asynchronous iterator and context manager for a reader in an event loop."""

    for_tasks: ClassVar[bool] = True

    async def __aiter__(self) -> AsyncGenerator[Item, None]:
        """Iterate to the end; leaving the loop early closes this iterator."""
        try:
            while (event := await self._queue.take_in_task(self.timeout)) is not None:
                yield self._item(event)
        finally:
            self._queue.close()

    async def __anext__(self) -> Item:
        event = await self._queue.take_in_task(self.timeout)
        if event is None:
            raise StopAsyncIteration
        return self._item(event)

    async def aclose(self) -> None:
        """Stop reading; the generation's next event raises :class:`ClosedError` there."""
        self._queue.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.close()
