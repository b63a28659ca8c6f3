"""A choice among few tokens is that among all of them."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from decodekit.decoding import History, Sample, Sampler, SamplingPipeline
from decodekit.decoding.sampling import noise
from decodekit.decoding.sampling.compiled.compiled_sampling import CompiledSampling
from decodekit.decoding.sampling.fast_sampling import FastSampling
from decodekit.processors import (
    Chain,
    MinP,
    NoRepeatNgram,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)

from ...strategies import examples

CHAINS: dict[str, Chain] = {
    "usual": RepetitionPenalty(1.1) | Temperature(0.8) | TopK(50) | TopP(0.9),
    "top-k": Chain([TopK(3)]),
    "top-k twice": TopK(20) | Temperature(1.7) | TopK(5),
    "hot": Temperature(3.0) | TopK(12),
    "cold": Temperature(0.01) | TopK(12) | TopP(0.99),
    "harsh": RepetitionPenalty(50.0) | TopK(4) | TopP(0.5, min_tokens=3),
    "of the last": RepetitionPenalty(1.5, include_prompt=False, window=3) | TopK(7),
    "of none": RepetitionPenalty(1.5, window=0) | TopK(7),
    "after": TopK(8) | TopP(0.95) | RepetitionPenalty(2.0) | Temperature(1.3),
    "one": Chain([TopK(1)]),
    "all of it": TopK(9) | TopP(1.0),
    "next to nothing": TopK(9) | TopP(1e-30),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[Tensor, History]:
    """Logits of a vocabulary wide enough, with ties, masks, extremes, and favourites that were said."""
    vocab, width = draw(st.sampled_from((700, 1031, 5000))), draw(st.integers(1, 2))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    logits = draw(st.sampled_from((0.05, 1.0, 4.0, 60.0))) * torch.randn(2, width, vocab, generator=rng)
    kind = draw(
        st.sampled_from(("distinct", "bfloat16", "whole", "masked", "negative", "equal", "odd", "huge"))
    )
    if kind == "bfloat16":
        logits = logits.bfloat16().float()
    elif kind == "whole":
        logits = (logits.round() * math.log(2)).float()
    elif kind == "masked":
        logits[torch.rand(logits.shape, generator=rng) < 0.9] = -torch.inf
    elif kind == "negative":
        logits = logits - 300.0
    elif kind == "equal":
        logits = torch.zeros_like(logits)
    elif kind == "odd":
        logits[0, 0, draw(st.integers(0, vocab - 1))] = draw(st.sampled_from((torch.nan, torch.inf, 3e38)))
    elif kind == "huge":
        logits = logits * 1e13
    ids = torch.randint(0, vocab, (2, 1, 12), generator=rng)
    favourites = logits.nan_to_num()[:, :1].topk(6, dim=-1).indices
    ids[..., :6] = favourites
    length = torch.tensor([[4], [9]]) + torch.arange(width)
    return logits, History(ids, length, torch.tensor([2, 3]), noise.random_streams(torch.arange(2), 5))


def plainly(logits: Tensor, history: History, chain: Chain, sampler: Sampler) -> Tensor:
    """By definition: every stage on all of the vocabulary, and the sampler."""
    processed = chain(logits, history)
    chosen = sampler(processed, history)
    best = processed.gather(-1, chosen[..., None])[..., 0]
    return torch.where(best > -torch.inf, chosen, -1)


def python_path(chain: Chain) -> FastSampling:
    """The path that is not compiled."""
    quick = SamplingPipeline(chain, Sample(seed=0)).fast
    assert isinstance(quick, CompiledSampling)
    return quick.otherwise


def compiled_path(chain: Chain) -> CompiledSampling:
    """The compiled path alone: None where it is not clear."""
    quick = SamplingPipeline(chain, Sample(seed=0)).fast
    assert isinstance(quick, CompiledSampling)
    nothing: Any = lambda *call: None  # noqa: E731
    return attrs.evolve(quick, otherwise=nothing)


both_paths = pytest.mark.parametrize("path", [python_path, compiled_path])
Path: TypeAlias = Callable[[Chain], FastSampling | CompiledSampling]


@both_paths
class TestFastSampling:
    @settings(deadline=None, max_examples=examples(400))
    @given(column=columns(), name=st.sampled_from(sorted(CHAINS)))
    def test_is_the_choice_among_all(self, column: tuple[Tensor, History], name: str, path: Path) -> None:
        """Where there is a quick choice it is the plain one; logits and history stay as they are."""
        logits, history = column
        before, ids = logits.clone(), history.ids.clone()
        quick = path(CHAINS[name])
        found = quick(logits, history)

        if found is not None:
            assert torch.equal(plainly(logits, history, CHAINS[name], Sample(seed=0)), found[0])
            assert torch.equal(CHAINS[name](logits, history), found[1].logits)
        torch.testing.assert_close(before, logits, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(ids, history.ids)

    @pytest.mark.parametrize("vocab", [32_000, 50_257])
    @pytest.mark.parametrize("name", sorted(set(CHAINS) - {"harsh"}))
    def test_is_there_for_ordinary_logits(self, name: str, vocab: int, path: Path) -> None:
        """Of two hundred columns, most are chosen so, and all as by definition."""
        quick = path(CHAINS[name])
        rng, found = torch.Generator().manual_seed(vocab), 0
        ids = torch.randint(0, vocab, (1, 1, 300), generator=rng)
        for seed in range(200):
            logits = 3 * torch.randn(1, 1, vocab, generator=rng)
            history = History(
                ids, torch.tensor([[256]]), torch.tensor([256]), noise.random_streams(torch.tensor([seed]), 1)
            )
            chosen = quick(logits, history)
            if chosen is not None:
                found += 1
                if seed < 20:
                    assert torch.equal(plainly(logits, history, CHAINS[name], Sample(seed=0)), chosen[0])

        assert found > 190

    @pytest.mark.parametrize("name", ["usual", "after", "top-k twice"])
    def test_ties_fall_as_by_definition(self, name: str, path: Path) -> None:
        """Where the edge is among equal logits, the same of them remain."""
        rng, found = torch.Generator().manual_seed(0), 0
        for seed in range(25):
            logits = (4 * torch.randn(1, 1, 5000, generator=rng)).round() * math.log(2)
            streams = noise.random_streams(torch.tensor([seed]), 1)
            ids = logits.topk(6, dim=-1).indices
            history = History(ids, torch.tensor([[4]]), torch.tensor([1]), streams)
            chosen = path(CHAINS[name])(logits, history)
            if chosen is not None:
                found += 1
                assert torch.equal(plainly(logits, history, CHAINS[name], Sample(seed=0)), chosen[0])
                assert torch.equal(CHAINS[name](logits, history), chosen[1].logits)

        assert found > 10

    def test_what_the_penalty_brings_down_makes_room(self, path: Path) -> None:
        """If more of the largest were said than the list has to spare, it is not trusted."""
        logits = torch.randn(1, 1, 5000, generator=torch.Generator().manual_seed(0)) + 5.0
        said = logits[0].topk(300).indices[None]
        history = History(said, torch.tensor([[300]]), torch.tensor([300]), torch.tensor([1]))
        chain = RepetitionPenalty(100.0) | TopK(20)
        assert path(chain)(logits, history) is None
        ids, scores = SamplingPipeline(chain, Sample(seed=0))(logits, history)
        assert torch.equal(plainly(logits, history, chain, Sample(seed=0)), ids)
        assert torch.equal(chain(logits, history), scores.logits)

    def test_other_logits_take_the_long_way(self, path: Path) -> None:
        """Those in another precision."""
        history = History(
            torch.zeros(1, 1, 4).long(), torch.tensor([[1]]), torch.tensor([1]), torch.tensor([0])
        )

        assert path(Chain([TopK(3)]))(torch.randn(1, 1, 5000, dtype=torch.float64), history) is None

    def test_rows_that_are_not_sampled_are_not_read(self, path: Path) -> None:
        """Garbage in one of them does not send the others the long way."""
        quick = path(Chain([TopK(3)]))
        logits = torch.randn(2, 1, 5000, generator=torch.Generator().manual_seed(0))
        logits[0] = torch.nan
        history = History(
            torch.zeros(2, 1, 4).long(),
            torch.tensor([[1], [1]]),
            torch.tensor([1, 1]),
            noise.random_streams(torch.arange(2), 1),
        )
        found = quick(logits, history, [1])

        assert quick(logits, history) is None
        assert found is not None
        assert -1 == found[0][0, 0]
        assert Sample(seed=0)(TopK(3)(logits[1:], history), history.rows([1]))[0, 0] == found[0][1, 0]


@pytest.mark.parametrize("k", [701, 2**31 - 1, 2**62, 2**63 - 1])
def test_more_tokens_than_there_are(k: int) -> None:
    """They keep everything, and take no memory."""
    one = torch.ones(1, dtype=torch.int64)
    history = History(one[None, None], one[None], one, one)
    logits = torch.randn(1, 1, 700, generator=torch.Generator().manual_seed(k % 97))
    of_all, _ = SamplingPipeline(None, Sample(seed=0))(logits, history)

    assert torch.equal(of_all, SamplingPipeline(TopK(k), Sample(seed=0))(logits, history)[0])


class TestWhereThereIsOne:
    @pytest.mark.parametrize(
        ("chain", "sampler"),
        [
            (Chain([TopP(0.9)]), Sample(seed=0)),
            (NoRepeatNgram(2) | TopK(5), Sample(seed=0)),
            (RepetitionPenalty(0.8) | TopK(5), Sample(seed=0)),
            (RepetitionPenalty([1.1, 1.2]) | TopK(5), Sample(seed=0)),
            (Temperature([1.1, 1.2]) | TopK(5), Sample(seed=0)),
            (TopK(5) | MinP(0.1), Sample(seed=0)),
            (Chain([TopK(0)]), Sample(seed=0)),
            (Chain([TopK([3, 4])]), Sample(seed=0)),
            (Chain([TopK(3, ties="first")]), Sample(seed=0)),
            (TopK(3) | TopP(0.9, ties="keep"), Sample(seed=0)),
            (TopP(0.9) | TopK(3), Sample(seed=0)),
            (Chain([TopK(3)]), lambda logits, history: logits.argmin(dim=-1)),
            (Chain([Temperature(1.0 + i / 8) for i in range(8)]) | TopK(3), Sample(seed=0)),
        ],
    )
    def test_there_is_none_for_other_parts(self, chain: Chain, sampler: Sampler) -> None:
        """Parts or parameters that do not offer it, or too many of them, take the long way."""
        assert SamplingPipeline(chain, sampler).fast is None

    def test_a_changed_part_is_not_gone_around(self) -> None:
        """A subclass that changes the call of one that offers it is called."""

        class Hot(Temperature):
            def __call__(self, logits: Tensor, history: History) -> Tensor:
                return -logits

        class First(Sample):
            def __call__(self, logits: Tensor, history: History) -> Tensor:
                return logits.argmax(dim=-1)

        assert SamplingPipeline(Hot(0.5) | TopK(3), Sample(seed=0)).fast is None
        assert SamplingPipeline(TopK(3), First()).fast is None
