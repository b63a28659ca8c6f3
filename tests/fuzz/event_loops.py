"""Cases of tasks in an event loop."""

import asyncio
import gc
import random
from typing import Any

from decodekit.decoding import Generator
from decodekit.streaming import AsyncEventIterator

from .generators import draft_decoder, made, solo, target
from .ready import require_ready


def tasks(seed: int) -> str:
    """Tasks that iterate, are cancelled at any await, leave, or are pending when the event loop ends."""
    dice = random.Random(seed)
    decoder, drafting = target(seed), draft_decoder()
    problems: list[str] = []
    numbers = range(dice.randrange(2, 5))
    makers = [made(seed, number, decoder, drafting) for number in numbers]
    alone = [solo(seed, number) for number in numbers]

    async def consume(number: int, leave_at: int, by_queue: bool) -> None:
        generator, prompts = makers[number]
        ids: list[list[int]] = [[] for _ in prompts]
        events, generation = source(generator, prompts, by_queue)
        seen = 0
        async for event in events:
            ids[event.row] += event.ids
            seen += 1
            if seen == leave_at:
                return
        assert alone[number][0] == ids, f"generator {number}"
        if generation is not None:
            await generation

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(f"{context}"))
        started = [
            asyncio.create_task(consume(n, dice.choice([0, 0, 1, 3]), dice.random() < 0.3)) for n in numbers
        ]
        for task in started:
            for _ in range(dice.randrange(12)):
                await asyncio.sleep(dice.choice([0, 0, 0.0005]))
            if dice.random() < 0.4:
                task.cancel()
        if dice.random() < 0.3:
            return
        results = await asyncio.gather(*started, return_exceptions=True)
        problems.extend(repr(result) for result in results if isinstance(result, Exception))

    asyncio.run(run())
    gc.collect()
    assert not problems, f"{problems}"
    require_ready(seed, decoder, drafting)
    return f"{len(numbers)} tasks"


def source(generator: Generator, prompts: list[list[int]], by_queue: bool) -> tuple[Any, Any]:
    """Events on demand, or of a generation that runs ahead, and that generation."""
    if not by_queue:
        return generator.astream(prompts), None
    events = AsyncEventIterator(capacity=2)
    return events, asyncio.create_task(asyncio.to_thread(generator, prompts, streamer=events))
