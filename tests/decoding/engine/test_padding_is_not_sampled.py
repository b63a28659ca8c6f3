"""Columns after a short draft, and rows that have ended, are not sampled: equal logits would take long."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    Batcher,
    Draft,
    EndOfSequence,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Sample,
    SamplingPipeline,
    Slots,
    Statistics,
)
from decodekit.decoding.engine.decode_loop import DecodeLoop
from decodekit.decoding.engine.parts import begin_run
from decodekit.decoding.results.timers import Timers
from decodekit.processors import RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import DraftModel
from decodekit.testing import ScriptedDecoder

VOCAB = 5000
"""More tokens than a fast path takes."""

TABLE = 3 * torch.randn(31, VOCAB, generator=torch.Generator().manual_seed(3))
NEAR = TABLE + 0.3 * torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(4))
CHAIN = RepetitionPenalty(1.1) | Temperature(0.7) | TopK(5) | TopP(0.9)
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [4, 9, 14], [7]]
STOP = EndOfSequence(list(range(0, VOCAB, 9))) | MaxNewTokens(14)


class ClearsPadding(ScriptedDecoder):
    """Gives zeros for padding, which it does not compute."""

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """Likewise where the last column alone is scored."""
        logits = super().forward(ids, cache_pos).clone()
        logits[ids[:, -logits.shape[1] :] < 0] = 0.0
        return logits


def decoder(rows: int = 3, table: Tensor = TABLE) -> ClearsPadding:
    """Over a table."""
    return ClearsPadding(table, batch_size=rows, max_length=64)


class Uneven:
    """Drafts three tokens, none, or one, by row."""

    def propose(self, history: History, budget: Tensor, sample: Any) -> Draft:
        """Tokens that are hardly ever right."""
        wanted = torch.tensor([(3, 0, 1)[row % 3] for row in range(len(budget))])
        return Draft(torch.where(torch.arange(3) < torch.minimum(budget, wanted)[:, None], 5, -1))


DRAFTERS: dict[str, Any] = {
    "none": lambda: None,
    "uneven": Uneven,
    "draft model": lambda: DraftModel(decoder(table=NEAR)),
}


@pytest.fixture
def fast_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail where the whole vocabulary is sampled from."""
    shapes: list[torch.Size] = []
    run_stages = SamplingPipeline.run_stages

    def recorded(self: SamplingPipeline, logits: Tensor, history: History) -> Any:
        shapes.append(logits.shape)
        return run_stages(self, logits, history)

    monkeypatch.setattr(SamplingPipeline, "run_stages", recorded)
    yield
    assert [] == shapes


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_of_a_generator(drafter: str, fast_alone: None) -> None:
    """Rows that end one after another, with drafts of unequal length."""
    parts = {"processors": CHAIN, "sampler": Sample(seed=1), "stop": STOP}
    alone = Generator(decoder(1), **parts)
    expected = [alone([prompt], random_streams=[i]).ids[0] for i, prompt in enumerate(PROMPTS)]

    assert len(set(map(len, expected))) > 1
    assert (
        expected
        == Generator(decoder(), drafter=DRAFTERS[drafter](), num_draft_tokens=4, **parts)(PROMPTS).ids
    )


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_of_requests(drafter: str, fast_alone: None) -> None:
    """That are sampled in one call, two samples of each prompt, on more rows than they take."""
    parts = {"processors": CHAIN, "sampler": Sample(seed=1), "stop": STOP}
    alone = Generator(decoder(1), **parts)
    made = DRAFTERS[drafter]()
    if isinstance(made, DraftModel):
        made = DraftModel(decoder(8, NEAR))
    together = Generator(decoder(8), drafter=made, num_draft_tokens=4, **parts)
    batcher = Batcher(together.decoder)
    handles = [
        batcher.submit(together.parts, prompt, random_stream=i) for i, prompt in enumerate(PROMPTS * 2)
    ]

    assert [alone([p], random_streams=[i]).ids[0] for i, p in enumerate(PROMPTS * 2)] == [
        handle.result().ids[0] for handle in handles
    ]


def test_of_requests_of_several_rows(fast_alone: None) -> None:
    """Of which some end before the others, while they are sampled in one call."""
    parts = {"processors": CHAIN, "sampler": Sample(seed=1), "stop": STOP}
    table = decoder(6)
    together, found = Generator(table, **parts), {}
    loop = DecodeLoop.empty(Slots.of(table), Timers(Statistics()))
    for first in (0, 3):
        run = begin_run(together.parts, loop.feeder, 3, Timers(Statistics()))
        found[loop.join(run, together._history(PROMPTS, range(first, first + 3)), first)] = [[], [], []]
    for _ in range(14):
        for request, outputs, _ in loop.step():
            for output in outputs:
                found[request][output.row] += output.ids
    alone = Generator(decoder(1), **parts)

    assert [alone([p], random_streams=[i]).ids[0] for i, p in enumerate(PROMPTS * 2)] == [
        ids for rows in found.values() for ids in rows
    ]


@pytest.mark.parametrize("chain", [CHAIN, Temperature(0.7) | TopP(0.9), TopK(5), None], ids=repr)
@pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=1)], ids=repr)
@pytest.mark.parametrize("rows", [None, [0, 2]])
@pytest.mark.parametrize("compiled", [True, False])
def test_other_columns_are_as_without_padding(
    chain: Any, sampler: Any, rows: list[int] | None, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and scores of what is sampled."""
    if not compiled:
        monkeypatch.setattr("decodekit.decoding.sampling.compiled.compiled_sampling.library", lambda: None)
    logits = TABLE[:12].reshape(3, 4, VOCAB).clone()
    columns = [4, 1, 2]
    length = torch.tensor([[5, 6, 7, 8], [4, 4, 4, 4], [6, 7, 7, 7]])
    ids = torch.randint(0, VOCAB, (3, 1, 12), generator=torch.Generator().manual_seed(5))
    history = History(ids, length, torch.tensor([2, 2, 2]), torch.tensor([1, 2, 3]))
    pipeline = SamplingPipeline(chain, sampler)
    expected, scores = pipeline.run_stages(logits, history)
    for row, last in enumerate(columns):
        logits[row, last:] = 0.0
        if rows is not None and row not in rows:
            logits[row] = 0.0
    found, found_scores = pipeline(logits, history, rows, columns)

    for row in range(3) if rows is None else rows:
        of_row = slice(0, columns[row])
        assert expected[row, of_row].tolist() == found[row, of_row].tolist()
        torch.testing.assert_close(scores.logits[row, of_row], found_scores.logits[row, of_row])


def test_stages_see_the_rows_that_are_sampled() -> None:
    """If they say that a row's result does not depend on which it is; also of half precision."""
    seen: list[tuple[int, ...]] = []

    class Halves:
        """Sees all logits."""

        row_independent = True

        def __call__(self, logits: Tensor, history: History) -> Tensor:
            seen.append((*logits.shape, *history.prompt.tolist()))
            return logits / 2

    logits = TABLE[:6].reshape(3, 2, VOCAB).half()
    length = torch.tensor([[5, 6], [4, 5], [7, 7]])
    history = History(torch.zeros(3, 1, 12, dtype=torch.int64), length, length[:, 0], length[:, 0])
    pipeline = SamplingPipeline(Halves(), Sample(seed=1))
    expected, all_scores = pipeline(logits, history)
    ids, scores = pipeline(logits, history, [2, 0], [2, 2, 1])

    assert [(3, 2, VOCAB, 5, 4, 7), (2, 2, VOCAB, 7, 5)] == seen
    assert [-1, -1] == ids[1].tolist()
    assert expected[0].tolist() == ids[0].tolist()
    assert expected[2, 0] == ids[2, 0]
    assert torch.equal(all_scores.logits[0], scores.logits[0])


def test_stages_see_no_padding_where_many_equal_logits_take_long() -> None:
    """A top-p, and a last stage that a clear maximum spares: those of the column before it."""
    seen: list[Tensor] = []

    class Keeps:
        """Sees all logits, and ends a chain."""

        keeps_argmax = True

        def __call__(self, logits: Tensor, history: History) -> Tensor:
            seen.append(logits.clone())
            return logits

    logits = TABLE[:8].reshape(2, 4, VOCAB).clone()
    logits[1, 1:] = 0.0
    length = torch.tensor([[5, 6, 7, 8], [4, 4, 4, 4]])
    history = History(torch.zeros(2, 1, 12, dtype=torch.int64), length, length[:, 0], length[:, 0])
    SamplingPipeline(Keeps(), Greedy())(logits, history, None, [4, 1])
    assert [] == seen

    SamplingPipeline(Keeps(), Sample(seed=1))(logits, history, None, [4, 1])
    assert torch.equal(seen[0][1], TABLE[4].expand(4, VOCAB))
