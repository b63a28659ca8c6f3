"""The pipeline, with its short cuts, is bit for bit the definition: each stage's call, then the sampler's."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from decodekit.decoding import Greedy, History, Processor, Sample, Sampler, SamplingPipeline
from decodekit.processors import Chain, DynamicTemperature, TopK

from ...strategies import examples
from ..entries.entry import NONE, Entry
from ..test_catalogue import CATALOGUE
from .random_windows import KINDS, MAKERS, ORDERS, window

SAMPLERS = (Greedy(), Sample(seed=0))


def bits(logits: Tensor) -> Tensor:
    """The numbers as integers; all NaN are one."""
    return torch.where(logits.isnan(), torch.nan, logits).view(torch.int32)


def check(stages: Sequence[Processor], sampler: Sampler, logits: Tensor, history: History) -> None:
    """Ids and scores are those of the definition, and the logits are as before."""
    before, processed = logits.clone(), logits
    for stage in stages:
        processed = stage(processed, history)
    sampled = sampler(processed, history)
    best = processed.gather(-1, sampled[..., None])[..., 0]

    ids, scores = SamplingPipeline(Chain(stages), sampler)(logits, history)

    assert torch.where(best > -torch.inf, sampled, -1).tolist() == ids.tolist()
    assert torch.equal(bits(processed), bits(scores.logits))
    assert torch.equal(bits(before), bits(logits))


def check_order(order: Sequence[str], kind: str, seed: int) -> None:
    """Of the stages in that *order*, with random parameters."""
    rng = random.Random(f"{order} {kind} {seed}")
    logits, history = window(rng, kind)
    stages = [MAKERS[name](rng, len(logits)) for name in order]
    for sampler in SAMPLERS:
        check(stages, sampler, logits, history)


@pytest.mark.parametrize("kind", KINDS)
class TestOrders:
    def test_some(self, kind: str) -> None:
        """Every order of up to four stages with one kind of logits."""
        for order in ORDERS[KINDS.index(kind) :: len(KINDS)]:
            check_order(order, kind, 0)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(1, 4))
    def test_all(self, kind: str, seed: int) -> None:
        """Every order with every kind."""
        for order in ORDERS:
            check_order(order, kind, seed)


def drawn(data: st.DataObject, entry: Entry, batch: int) -> Processor:
    """The entry's processor with one parameter, or one per row."""
    if not entry.rows or data.draw(st.booleans()):
        return entry.make(data.draw(entry.parameters))
    one = entry.parameters if entry.neutral is NONE else st.one_of(st.just(entry.neutral), entry.parameters)
    return entry.make(data.draw(st.lists(one, min_size=batch, max_size=batch)))


@pytest.mark.parametrize("name", CATALOGUE)
@settings(deadline=None, max_examples=examples(40))
@given(
    data=st.data(),
    kind=st.sampled_from(KINDS),
    rng=st.randoms(use_true_random=False),
    around=st.lists(st.sampled_from(sorted(MAKERS)), max_size=3),
)
def test_every_processor_between_them(
    name: str, data: st.DataObject, kind: str, rng: random.Random, around: list[str]
) -> None:
    """Any processor before, between and after the stages that have short cuts."""
    logits, history = window(rng, kind)
    if name == "PrefixFunction":
        # The entry's function allows tokens of the history, which have to be in the vocabulary.
        history.ids.remainder_(logits.shape[-1])
    stages = [MAKERS[each](rng, len(logits)) for each in around]
    stages.insert(rng.randint(0, len(stages)), drawn(data, CATALOGUE[name], len(logits)))
    for sampler in SAMPLERS:
        check(stages, sampler, logits, history)


def test_of_infinite_logits_too() -> None:
    """They have no entropy; a token that was removed stays removed."""
    logits = torch.zeros(1, 1, 64)
    logits[..., :2] = torch.inf
    one = torch.ones(1, dtype=torch.int64)
    for sampler in SAMPLERS:
        stages = [TopK(1, ties="keep"), DynamicTemperature(0.5, 2.0)]
        check(stages, sampler, logits, History(one[None, None], one[None], one, one))
