"""Requests of one chain object and one sampler are sampled in one call."""

from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import Batcher, Generator, Greedy, History, MaxNewTokens, Sample
from decodekit.decoding.engine.merged_sampling import _blocks, _index, _rows_of
from decodekit.processors import RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import PromptLookup
from decodekit.testing import ScriptedDecoder

TABLE = 2 * torch.randn(97, 9, generator=torch.Generator().manual_seed(3))
PROMPTS = [[1, 2, 3, 1, 2], [4, 4, 4], [5, 6, 5, 6, 5], [7]]


class Counting:
    """A processor that records how many rows each call has."""

    row_independent: ClassVar[bool] = True

    def __init__(self, fails: int = 0) -> None:
        self.rows: list[int] = []
        self.fails = fails

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        self.rows.append(len(logits))
        if (history.ids[:, 0, 0] == self.fails).any():
            raise RuntimeError("a row fails")
        return logits - logits[..., :1]


def serve(*generators: Generator) -> list[list[int]]:
    """The texts of :data:`PROMPTS`, submitted with the parts of *generators* in turn."""
    batcher = Batcher(generators[0].decoder)
    handles = [
        batcher.submit(generators[i % len(generators)].parts, prompt, random_stream=i)
        for i, prompt in enumerate(PROMPTS)
    ]
    return [handle.result().ids[0] for handle in handles]


def decoder(rows: int = 4) -> ScriptedDecoder:
    """Over the table."""
    return ScriptedDecoder(TABLE, batch_size=rows)


CHAINS: dict[str, Any] = {
    "none": None,
    "fast": RepetitionPenalty(1.2) | Temperature(0.8) | TopK(4) | TopP(0.9),
    "long": Temperature(1.3) | TopP(0.95),
}


@pytest.mark.parametrize("drafter", [None, PromptLookup()], ids=["plain", "lookup"])
@pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=5)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("chain", CHAINS)
def test_texts_are_those_alone(chain: str, sampler: Any, drafter: Any) -> None:
    """Whatever the chain, the sampler and the drafts."""
    parts = {"processors": CHAINS[chain], "sampler": sampler, "drafter": drafter, "stop": MaxNewTokens(9)}
    alone = Generator(decoder(1), **parts)

    assert [alone([p], random_streams=[i]).ids[0] for i, p in enumerate(PROMPTS)] == serve(
        Generator(decoder(), **parts)
    )


def test_one_chain_and_sampler_is_one_call() -> None:
    """Four rows; and two of two where there are two samplers."""
    chain, stop, table = Counting(), MaxNewTokens(3), decoder()
    together = Generator(table, processors=chain, sampler=Sample(seed=1), stop=stop)
    serve(together)

    assert {4} == set(chain.rows)

    other = Generator(table, processors=chain, sampler=Sample(seed=2), stop=stop)
    chain.rows.clear()
    serve(together, other)
    assert {2} == set(chain.rows)


def test_a_part_that_does_not_say_so_is_called_by_row() -> None:
    """A processor that may depend on which row it is."""

    class Silent(Counting):
        row_independent = False

    chain = Silent()
    serve(Generator(decoder(), processors=chain, sampler=Sample(seed=1), stop=MaxNewTokens(3)))

    assert {1} == set(chain.rows)


def test_a_row_that_raises_ends_its_own_request() -> None:
    """Though it was sampled with others."""
    table = decoder()
    parts = Generator(table, processors=Counting(fails=7), stop=MaxNewTokens(3)).parts
    batcher = Batcher(table)
    handles = [batcher.submit(parts, prompt) for prompt in PROMPTS]

    with pytest.raises(RuntimeError, match="a row fails"):
        handles[3].result()
    assert [3, 3, 3] == [len(handle.result().ids[0]) for handle in handles[:3]]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=4))
def test_rows_of_blocks(gaps_and_sizes: list[tuple[int, int]]) -> None:
    """Those that an index gives, in the same order."""
    slices, end = [], 0
    for gap, size in gaps_and_sizes:
        slices.append(slice(end + gap, end + gap + size))
        end += gap + size
    logits = torch.arange(3.0 * end).reshape(end, 1, 3)
    rows = [row for each in slices for row in range(each.start, each.stop)]
    blocks = _blocks(slices)

    assert torch.equal(logits[rows], _rows_of(logits, blocks))
    assert torch.equal(logits[rows], logits[_index(blocks)])
    assert all(one.stop < other.start for one, other in pairwise(blocks))


@pytest.mark.parametrize(
    ("slices", "copied"), [([slice(2, 3), slice(3, 5)], False), ([slice(0, 1), slice(2, 3)], True)]
)
def test_only_rows_that_lie_apart_are_copied(slices: list[slice], copied: bool) -> None:
    """Others are a view."""
    rows = _rows_of(TABLE, _blocks(slices))

    assert copied is (rows.untyped_storage().data_ptr() != TABLE.untyped_storage().data_ptr())
