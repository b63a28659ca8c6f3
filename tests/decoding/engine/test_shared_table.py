"""Requests that share a decoder give what each gives alone."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.decoding import Draft, Generator, Greedy, History, MaxNewTokens, Sample, Slots, Statistics
from decodekit.decoding.engine.decode_loop import DecodeLoop
from decodekit.decoding.engine.parts import begin_run
from decodekit.decoding.engine.run import Run
from decodekit.decoding.protocols import Sampler
from decodekit.decoding.results.timers import Timers
from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.processors import Temperature, TopK
from decodekit.speculation import DraftModel, DraftTree, PromptLookup, Tree
from decodekit.testing import ScriptedDecoder

from ...histories import history_of_rows
from .queueing_decoder import QueueingDecoder
from .requests import check_table

TABLE = 2 * torch.randn(97, 9, generator=torch.Generator().manual_seed(3))
NEAR = TABLE + 0.5 * torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(4))


def scripted(rows: int, table: Tensor = TABLE, **options: Any) -> ScriptedDecoder:
    """A decoder over *table*."""
    return ScriptedDecoder(table, batch_size=rows, max_length=48, **options)


@pytest.mark.mostly_slow(every=12)
@pytest.mark.parametrize("seed", range(120))
def test_scripted_requests(seed: int) -> None:
    """Ten requests of up to three rows: twelve kinds of chain, samplers with state, a shared draft model."""
    dice = random.Random(seed)
    rows = dice.randint(1, 5)
    drafters = [PromptLookup(), DraftModel(scripted(5, NEAR))]

    assert check_table(dice, scripted, drafters, rows, 10)


@pytest.mark.mostly_slow(every=12)
@pytest.mark.parametrize("seed", range(120))
@pytest.mark.parametrize("queues", [True, False])
def test_scripted_requests_sampled_by_the_device(seed: int, queues: bool) -> None:
    """Where all that decode have the device's chain; with a forward ahead where none of them drafts."""
    dice = random.Random(seed)
    rows = dice.randint(1, 5)
    drafters = [PromptLookup()] if seed % 3 == 0 else []
    sampler: Sampler = Sample(seed=dice.randint(0, 9)) if seed % 2 else Greedy()
    chain = Temperature(0.8) | TopK(6)
    table = QueueingDecoder(
        TABLE, batch_size=rows, max_length=48, processors=chain, sampler=sampler, async_mode=queues
    )

    assert check_table(dice, scripted, drafters, rows, 10, table)
    assert table.sampled or table.fed_unread


@pytest.mark.mostly_slow(every=15)
@pytest.mark.parametrize("seed", range(45))
def test_float64_requests(seed: int, tiny_model: Any) -> None:
    """Five requests over a model."""
    model, draft = tiny_model("llama", torch.float64), tiny_model("qwen2", torch.float64)

    def make(rows: int) -> StaticDecoder:
        return StaticDecoder(model, batch_size=rows, max_length=48, widths=(1, 5, 16), scored_width=5)

    dice = random.Random(seed)
    drafter = DraftModel(StaticDecoder(draft, batch_size=4, max_length=48, widths=(1, 5, 16), scored_width=5))

    assert check_table(dice, make, [PromptLookup(), drafter], dice.randint(1, 4), 5)


def run_of(loop: DecodeLoop, rows: int = 1, **parts: Any) -> Run:
    """A request of *rows* rows."""
    decoder = scripted(rows, tree_widths=(8,))
    return begin_run(Generator(decoder, **parts).parts, loop.feeder, rows, Timers(Statistics()))


class TestTable:
    def test_rows_are_taken_and_freed(self) -> None:
        """By requests of several rows, in any place."""
        decoder = scripted(4)
        loop = DecodeLoop.empty(Slots.of(decoder), Timers(Statistics()))
        pair = loop.join(run_of(loop, 2), history_of_rows([[1], [2]]), 1)
        assert [0, 3] == loop.free()
        with pytest.raises(ValueError, match=r"'first' must begin 2 of the free rows \[0, 3\]: got 0"):
            loop.join(run_of(loop, 2), history_of_rows([[1], [2]]), 0)
        loop.leave(pair)

        assert [0, 1, 2, 3] == loop.free()
        assert [] == loop.step()

    def test_a_prompt_beyond_the_cache_is_refused(self) -> None:
        """Nothing is written."""
        decoder = scripted(2)
        loop = DecodeLoop.empty(Slots.of(decoder), Timers(Statistics()))
        with pytest.raises(ValueError, match="'history' must have at most 48 tokens in a row: got 49"):
            loop.join(run_of(loop), history_of_rows([[1] * 49]), 0)

        assert [0, 1] == loop.free()

    def test_trees_are_refused_by_name(self) -> None:
        """They have columns of their own."""
        decoder = scripted(2, tree_widths=(8,))
        loop = DecodeLoop.empty(Slots.of(decoder), Timers(Statistics()))
        drafter = DraftTree(scripted(2, NEAR), Tree.comb(2, 2))
        with pytest.raises(ValueError, match="requests that share a decoder take no draft trees"):
            loop.join(run_of(loop, drafter=drafter), history_of_rows([[1]]), 0)

    def test_a_long_prompt_is_fed_in_chunks(self) -> None:
        """While another row decodes a token in every step."""
        decoder = scripted(2)
        loop = DecodeLoop.empty(Slots.of(decoder), Timers(Statistics()))
        stop = MaxNewTokens(30)
        quick = loop.join(run_of(loop, stop=stop), history_of_rows([[1]]), 0)
        loop.step()
        late = loop.join(run_of(loop, stop=stop), history_of_rows([[2] * 40]), 1)
        told = [[request for request, _, _ in loop.step(most=16)] for _ in range(4)]

        assert [[quick], [quick], [quick, late], [quick, late]] == told
        assert [1, 16, 16, 16, 1] == decoder.forwards

    def test_an_exception_leaves_the_table_as_it_was(self) -> None:
        """The step is repeated, with the same tokens."""
        decoder = scripted(2)
        loop = DecodeLoop.empty(Slots.of(decoder), Timers(Statistics()))
        failing = [False]

        def processor(logits: Tensor, history: History) -> Tensor:
            if failing[0]:
                raise RuntimeError("this part fails")
            return logits

        loop.join(run_of(loop, stop=MaxNewTokens(5)), history_of_rows([[1, 2]]), 0)
        loop.join(run_of(loop, processors=processor, stop=MaxNewTokens(5)), history_of_rows([[3]]), 1)
        ids: list[list[int]] = [[], []]
        for step in range(7):
            failing[0] = step in (1, 3)
            try:
                results = loop.step()
            except RuntimeError:
                continue
            for request, outputs, _ in results:
                ids[request.rows.start] += outputs[0].ids
        alone = [
            Generator(scripted(1), stop=MaxNewTokens(5))([prompt], random_streams=[row]).ids[0]
            for row, prompt in enumerate([[1, 2], [3]])
        ]

        assert alone == ids


class Raises:
    """A drafter that fails."""

    def propose(self, history: History, budget: Tensor, sample: Any) -> Draft:
        """Raise."""
        raise RuntimeError("no draft")


def test_a_request_whose_part_raised_takes_part_in_no_step() -> None:
    """Not in the step in which it raised either; the other one goes on."""
    failed: list[Any] = []
    decoder = scripted(2)
    loop = DecodeLoop.empty(
        Slots.of(decoder), Timers(Statistics()), failed=lambda request, error: failed.append(request)
    )
    stop = MaxNewTokens(5)
    raising = loop.join(
        run_of(loop, drafter=Raises(), num_draft_tokens=2, stop=stop), history_of_rows([[1]]), 0
    )
    other = loop.join(run_of(loop, stop=stop), history_of_rows([[2]]), 1)
    told = [[request for request, _, _ in loop.step()] for _ in range(4)]

    assert [[raising, other], [other], [other], [other]] == told
    assert [raising] == failed


class Behind:
    """A drafter that needs three steps to catch up."""

    def __init__(self) -> None:
        self.lacks = 40
        self.asked: list[int] = []

    def catch_up(self, history: History, rows: Tensor, most: int) -> Tensor:
        """Feed *most* more."""
        self.lacks -= most
        return torch.where(rows, self.lacks, 0)

    def propose(self, history: History, budget: Tensor, sample: Any) -> Draft:
        """Nothing."""
        self.asked.append(int(budget.max()))
        return Draft(torch.empty(len(budget), 0, dtype=torch.int64))


def test_a_drafter_catches_up_in_chunks() -> None:
    """It is asked for a draft when it lacks no more than a step's columns."""
    decoder, drafter = scripted(2), Behind()
    loop = DecodeLoop.empty(Slots.of(decoder), Timers(Statistics()))
    loop.join(run_of(loop, drafter=drafter, stop=MaxNewTokens(9)), history_of_rows([[1]]), 0)
    asked = []
    for _ in range(5):
        loop.step(most=16)
        asked.append(len(drafter.asked))

    assert [0, 0, 1, 2, 3] == asked


def test_a_draft_model_catches_up_in_chunks() -> None:
    """One forward of the chunk's width a step, until it lacks less."""
    decoder, draft = scripted(1), scripted(1, NEAR)
    history = history_of_rows([[1] * 40])
    rows = torch.tensor([True])
    behind = [DraftModel(draft).catch_up(history, rows, 16).tolist() for _ in range(3)]

    assert [[24], [8], [8]] == behind
    assert [16, 16] == draft.forwards
    assert decoder.forwards == []


def test_a_draft_model_lacks_nothing_of_a_prompt_that_it_cannot_hold() -> None:
    """Otherwise it would be catching up with it for ever."""
    draft = ScriptedDecoder(NEAR, batch_size=2, max_length=32)
    history = history_of_rows([[1] * 40, [2] * 30])

    assert [0, 14] == DraftModel(draft).catch_up(history, torch.tensor([True, True]), 16).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_overlap_and_missing(seed: int) -> None:
    """What each row holds of a prompt, and what it lacks of its own."""
    dice = random.Random(seed)
    rows = [[dice.randrange(3) for _ in range(dice.randint(1, 12))] for _ in range(3)]
    slots, history = Slots(scripted(3)), history_of_rows(rows)
    length = history.length[:, 0]
    assert length.tolist() == slots.missing(history, length).tolist()
    slots.feed(history, length, torch.ones_like(length))
    prompt = [dice.randrange(3) for _ in range(12)]
    alike = [[a == b for a, b in zip(row, prompt, strict=False)] for row in rows]
    common = [[*row, False].index(False) for row in alike]

    assert common == slots.overlap(prompt)
    assert [0, 0, 0] == slots.missing(history, length).tolist()
    other = history_of_rows([prompt] * 3)
    assert [12 - n for n in common] == slots.missing(other, other.length[:, 0]).tolist()
