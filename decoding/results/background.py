"""A blocking iterator as an asynchronous one."""

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

_Outcome: TypeAlias = tuple[Any, BaseException | None]
"""An item, or what was raised instead."""

_END: Any = object()


async def in_thread(items: Generator[T, Any, Any]) -> AsyncGenerator[T, None]:
    """
    Yield *items*, each computed in a thread of their own, so that other tasks can run meanwhile.

    However the consumer ends (it breaks off, raises, or is cancelled, even more than once, also by the end
    of its event loop), the thread finishes first and *items* is closed.
    """
    loop = asyncio.get_running_loop()
    # One thread: a compiled decoder keeps a team of workers for each thread that calls it.
    executor = ThreadPoolExecutor(1, "decodekit")
    step: Future[None] | None = None
    try:
        while True:
            # Not the executor's future: its result takes two more rounds of the loop. Nor a task, as of
            # to_thread: the end of asyncio.run cancels all tasks while their threads still compute.
            arrived: asyncio.Future[_Outcome] = loop.create_future()
            step = executor.submit(contextvars.copy_context().run, _compute, items, loop, arrived)
            item, error = await arrived
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        executor.shutdown(wait=False)
        try:
            await returned(None if step is None else asyncio.wrap_future(step))
        finally:
            items.close()


def _compute(
    items: Generator[Any, Any, Any], loop: asyncio.AbstractEventLoop, arrived: "asyncio.Future[_Outcome]"
) -> None:
    """Tell *loop* the next item."""
    try:
        _tell(loop, arrived, (next(items, _END), None))
    except BaseException as error:
        _tell(loop, arrived, (None, error))


def _tell(loop: asyncio.AbstractEventLoop, arrived: "asyncio.Future[_Outcome]", outcome: _Outcome) -> None:
    # A loop that is closed has no consumer left.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_arrive, arrived, outcome)


def _arrive(arrived: "asyncio.Future[_Outcome]", outcome: _Outcome) -> None:
    # A consumer that was cancelled has cancelled its future.
    if not arrived.done():
        arrived.set_result(outcome)


async def returned(step: "asyncio.Future[Any] | None") -> None:
    """Wait until *step* is over; a cancellation meanwhile is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while step is not None and not step.done():
        try:
            await asyncio.wait([step])
        except asyncio.CancelledError as error:
            cancelled = error
    if step is not None and not step.cancelled():
        step.exception()  # retrieved, or asyncio would log it as never retrieved
    if cancelled is not None:
        raise cancelled
