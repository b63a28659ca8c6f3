"""A blocking iterator as an asynchronous one."""

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def in_threads(items: Generator[T, Any, Any]) -> AsyncGenerator[T, None]:
    """
    Yield *items*, each computed in a thread, so that other tasks can run meanwhile.

    However the consumer ends (it breaks off, raises, or is cancelled, even more than once, also by the end
    of its event loop), the thread finishes first and *items* is closed.
    """
    done: Any = object()
    loop = asyncio.get_running_loop()
    step: asyncio.Future[Any] | None = None
    try:
        while True:
            # Not a task, as of to_thread: the end of asyncio.run cancels all tasks, and a cancelled task is
            # done while its thread is still computing the item.
            next_item = partial(contextvars.copy_context().run, next, items, done)
            step = loop.run_in_executor(None, next_item)
            item = await asyncio.shield(step)
            if item is done:
                return
            yield item
    finally:
        await returned(step)
        items.close()


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
