"""Statistics of a request: its own counts, and the work that it shared."""

import time
from typing import Any

import pytest
import torch

from decodekit.decoding import (
    Batched,
    Batcher,
    BestOfN,
    Generator,
    History,
    MaxNewTokens,
    Sample,
)
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
    waiting, later = handles[2].statistics, handles[2].statistics
    *_, last = found = [handle.result().statistics for handle in handles]

    assert {"waiting": waiting.total_seconds} == waiting.seconds
    assert 0 < waiting.total_seconds < later.total_seconds
    assert last.seconds["waiting"] > found[0].seconds["target"] > 0
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


def test_the_time_between_two_prompts_is_a_wait() -> None:
    """Of prompts that were submitted together; a request of higher priority has the row meanwhile."""
    one, short = generator(1), generator(1, stop=MaxNewTokens(2))
    batcher = Batcher(one.decoder)
    both = batcher.submit_many(short.parts, [[1], [2]])
    batcher.step()
    other = batcher.submit(one.parts, [3], priority=10.0)
    counted, others = both.result().statistics, other.result().statistics

    assert (4, 9) == (counted.forwards, others.forwards)
    assert counted.seconds["waiting"] > others.seconds["target"]


def test_a_request_without_a_drafter_has_no_drafts() -> None:
    """Whatever the requests beside it have."""
    plain, drafting = generator(), generator(drafter=PromptLookup(), num_draft_tokens=2)
    batcher = Batcher(plain.decoder)
    handles = [batcher.submit(each.parts, [0]) for each in (drafting, plain)]
    found = [handle.result().statistics for handle in handles]

    assert [True, False] == ["draft" in each.seconds for each in found]
    assert "draft" not in str(found[1])


def test_rows_are_those_of_a_generator() -> None:
    """Also where one of them ends at its first token."""
    one = generator(3, end_of_sequence=0)
    for prompts in ([[3], [1], [2]], [[1], [3], [2]], [[1], [2], [3]], [[3], [3], [3]]):
        alone = one(prompts).statistics
        batched = Batcher(one.decoder).submit_many(one.parts, prompts).result().statistics

        assert (alone.row_steps, alone.row_accepted) == (batched.row_steps, batched.row_accepted)


def test_the_time_of_a_request_that_fails() -> None:
    """Includes that of its phases."""

    class Fails:
        def __call__(self, logits: torch.Tensor, history: History) -> torch.Tensor:
            raise OSError("broken")

    one = generator(processors=Fails())
    batcher = Batcher(one.decoder)
    handle = batcher.submit(one.parts, [1])
    time.sleep(0.01)
    with pytest.raises(OSError, match="broken"):
        handle.result()

    counted = handle.statistics
    assert counted.total_seconds >= counted.seconds["waiting"] + counted.seconds["prefill"] > 0.01


def test_samples_of_several_prompts_count_a_forward_once() -> None:
    """Of a choice among them too."""
    one = generator(4, sampler=Sample(seed=0))
    best = BestOfN(Batched(Batcher(one.decoder), one.parts), 2)([[1], [2]])

    assert 9 == best.statistics.forwards


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
