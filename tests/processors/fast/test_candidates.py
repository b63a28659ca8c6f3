"""Candidates between stages."""

import torch

from decodekit.decoding import History, Sample, SamplingPipeline
from decodekit.processors import Composable, PresencePenalty, TopK

ONE_COLUMN = History(torch.zeros(1, 1, 4).long(), torch.tensor([[1]]), torch.tensor([1]), torch.tensor([0]))


def test_candidates_are_passed_on() -> None:
    """After a top-k, a local stage and a sampler see the survivors alone; others see all."""
    seen = []

    class Spy(Composable):
        local = True

        def __call__(self, logits: torch.Tensor, history: History) -> torch.Tensor:
            seen.append(logits.shape[-1])
            return logits

    logits = torch.randn(1, 1, 5000, generator=torch.Generator().manual_seed(0))
    SamplingPipeline(Spy() | TopK(7) | Spy() | PresencePenalty(1.0) | Spy(), Sample(seed=0))(
        logits, ONE_COLUMN
    )

    assert [5000, 7, 5000] == seen
