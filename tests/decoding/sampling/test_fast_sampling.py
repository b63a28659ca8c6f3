"""The fast path without processors."""

import math

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import Greedy, History, Processor, SamplingPipeline
from decodekit.decoding.sampling.fast_sampling import FastGreedy
from decodekit.processors import Composable


def first_of_the_largest(scores: list[float]) -> int:
    """-1 if there is garbage, or nothing."""
    garbage = any(math.isnan(score) for score in scores)
    return -1 if garbage or max(scores) == -math.inf else scores.index(max(scores))


class TestFastGreedy:
    @given(
        st.lists(st.sampled_from((-torch.inf, -1.0, 0.0, 2.0, torch.inf, torch.nan)), min_size=1, max_size=7)
    )
    def test_is_what_is_chosen_among_all(self, scores: list[float]) -> None:
        """The first of the largest, and none where there is nothing or garbage."""
        logits = torch.tensor([[scores, scores[::-1]]])
        quick = SamplingPipeline(None, Greedy()).fast
        assert isinstance(quick, FastGreedy)
        history = History(
            torch.zeros(1, 1, 4).long(), torch.tensor([[1, 2]]), torch.tensor([1]), torch.tensor([0])
        )
        found = quick(logits, history)
        assert found is not None
        chosen, left = found
        assert logits is left.logits

        assert [[first_of_the_largest(scores), first_of_the_largest(scores[::-1])]] == chosen.tolist()

    def test_other_selections_and_chains_take_the_long_way(self) -> None:
        """A subclass may choose otherwise, and a processor has to be run."""

        class Least(Greedy):
            def __call__(self, logits: Tensor, history: History) -> Tensor:
                return logits.argmin(dim=-1)

        class Stage(Composable):
            def __call__(self, logits: Tensor, history: History) -> Tensor:
                return -logits

        stage: Processor = Stage()
        assert SamplingPipeline(None, Least()).fast is None
        assert SamplingPipeline(stage, Greedy()).fast is None
