"""Statistics of a request: its own counts, and the work that it shared."""

from typing import Any

import torch

from decodekit.decoding import Batcher, Generator, MaxNewTokens
from decodekit.speculation import PromptLookup
from decodekit.testing import ScriptedDecoder, last_token


def generator(batch_size: int = 2, **parts: Any) -> Generator:
    """Over a decoder whose texts repeat after four tokens."""
    decoder = ScriptedDecoder(torch.eye(4).roll(1, dims=1), batch_size=batch_size, line=last_token)
    return Generator(decoder, **{"stop": MaxNewTokens(9), **parts})


def test_forwards_are_those_of_a_run_alone() -> None:
    """Where no other request is beside it."""
    one = generator(1)

    alone, batched = one([1]).statistics, Batcher(one.decoder).submit(one.parts, [1]).result().statistics

    assert alone.forwards == batched.forwards > 0
    assert alone.tokens == batched.tokens
    assert {"prefill", "target"} <= set(batched.seconds)


def test_a_wait_is_no_work_of_the_host() -> None:
    """The third request has a row when the first two have ended."""
    one = generator()
    batcher = Batcher(one.decoder)
    handles = [batcher.submit(one.parts, [1]) for _ in range(3)]
    waiting = handles[2].statistics
    *_, last = found = [handle.result().statistics for handle in handles]

    assert {"waiting": waiting.total_seconds} == waiting.seconds
    assert last.seconds["waiting"] > found[0].total_seconds / 2 > found[0].seconds["waiting"]
    assert [9, 9, 9] == [each.forwards for each in found]
    for each in found:
        assert 0 <= each.host_seconds < each.total_seconds
        assert 0 < (each.first_token_seconds or 0.0) <= each.total_seconds


def test_samples_of_a_prompt_run_side_by_side() -> None:
    """Their time is that of the longest, and each forward counts once."""
    one = generator()
    handle = Batcher(one.decoder).submit(one.parts, [1], num_samples=2)
    counted = handle.result().statistics

    assert 18 == counted.tokens
    assert 9 == counted.forwards
    assert sum(counted.seconds.values()) <= counted.total_seconds


def test_what_others_were_fed_before_is_not_counted() -> None:
    """Nor what follows its end."""
    one, short = generator(), generator(stop=MaxNewTokens(2))
    batcher = Batcher(one.decoder)
    first = batcher.submit(one.parts, [1])
    for _ in range(4):
        batcher.step()
    second = batcher.submit(short.parts, [1])
    first.result()

    assert 2 == second.result().statistics.forwards
    assert 9 == first.result().statistics.forwards == batcher.statistics.forwards


def test_a_drafter_that_never_drafts_is_mentioned() -> None:
    """As is the number of steps without a draft."""
    drafted = {"drafter": PromptLookup(), "num_draft_tokens": 2}
    never, later = generator(**drafted, stop=MaxNewTokens(3)), generator(**drafted)

    assert "the drafter was asked, and nothing was drafted" in str(never([0]).statistics)
    assert ", 3 of them without a draft" in str(later([0]).statistics)
