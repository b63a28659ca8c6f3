"""A blocking iterator for an event loop."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def in_threads(items: Generator[T, Any, Any]) -> AsyncGenerator[T, None]:
    """
    Pass on *items*, each asked for in a thread, so that other tasks run meanwhile.

    However the consumer ends (it breaks off, raises, is cancelled, even more than once), the
    thread comes back first and *items* is closed: nobody is left inside.
    """
    done: Any = object()
    step: asyncio.Future[Any] | None = None
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(next, items, done))
            item = await asyncio.shield(step)
            if item is done:
                return
            yield item
    finally:
        await returned(step)
        items.close()


async def returned(step: "asyncio.Future[Any] | None") -> None:
    """Wait until *step* is over; cancels that come meanwhile are raised after it."""
    cancelled: asyncio.CancelledError | None = None
    while step is not None and not step.done():
        try:
            await asyncio.wait([step])
        except asyncio.CancelledError as error:
            cancelled = error
    if step is not None and not step.cancelled():
        step.exception()  # looked at, or asyncio would report what nobody waits for any more
    if cancelled is not None:
        raise cancelled
