"""When two chains count as the same program."""

from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import Greedy, History, Sample
from decodekit.neuron_backend.on_device_sampling.chain_digest import chain_digest, has_rows, same_chain
from decodekit.processors import (
    Chain,
    Composable,
    LogitBias,
    SuppressTokens,
    Temperature,
    ThinkingBudget,
    TopK,
)

from ...processors.test_catalogue import CATALOGUE


@attrs.frozen(eq=False)
class Mine(Composable):
    """A processor from outside decodekit."""

    by: float = 2.0

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Scale."""
        return logits * self.by


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(Temperature(0.7), Temperature(0.7), id="a-number"),
        pytest.param(Temperature(0.7), Chain([Temperature(0.7)]), id="alone-or-in-a-chain"),
        pytest.param(TopK([5, 7]), TopK(torch.tensor([5, 7])), id="one-per-row"),
        pytest.param(LogitBias({3: 1.0}), LogitBias({3: 1}), id="a-mapping"),
        pytest.param(None, Chain(), id="nothing"),
    ],
)
def test_equal_parameters_are_the_same(one: Any, other: Any) -> None:
    """Whatever their form: list or tensor, alone or in a chain."""
    assert chain_digest(one, Greedy()) == chain_digest(other, Greedy())
    assert same_chain((one, Greedy()), (other, Greedy()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(Temperature(0.7), Temperature(0.7000001), id="a-number"),
        pytest.param(TopK(5), TopK(5, ties="first"), id="an-option"),
        pytest.param(TopK([5, 7]), TopK([7, 5]), id="one-per-row"),
        pytest.param(LogitBias({3: 1.0}), LogitBias({4: 1.0}), id="a-mapping"),
        pytest.param(SuppressTokens([1, 2]), SuppressTokens([1, 3]), id="ids"),
        pytest.param(Temperature(2.0) | TopK(5), TopK(5) | Temperature(2.0), id="order"),
        pytest.param(Temperature(2.0), Temperature(2.0) | TopK(0), id="one-more"),
        pytest.param(ThinkingBudget(5, [1], [2]), ThinkingBudget(6, [1], [2]), id="a-budget"),
    ],
)
def test_other_parameters_are_not(one: Any, other: Any) -> None:
    """A single different parameter changes the digest."""
    assert chain_digest(one, Greedy()) != chain_digest(other, Greedy())
    assert not same_chain((one, Greedy()), (other, Greedy()))


def test_a_sampler_counts_by_its_class() -> None:
    """The seed does not count: noise is an input of the program."""
    chain = Temperature(0.7)

    assert same_chain((chain, Sample(seed=1)), (chain, Sample(seed=2)))
    assert chain_digest(chain, Sample(seed=1)) == chain_digest(chain, Sample(seed=2))
    assert not same_chain((chain, Sample(seed=0)), (chain, Greedy()))
    assert chain_digest(chain, Sample(seed=0)) != chain_digest(chain, Greedy())


def test_a_foreign_processor_equals_only_itself() -> None:
    """What another instance of its class computes is not known."""
    mine = Mine()

    assert chain_digest(mine, Greedy()) is None
    assert same_chain((mine, Greedy()), (mine, Greedy()))
    assert same_chain((mine | TopK(3), Greedy()), (mine | mine, Greedy())) is False
    assert not same_chain((mine, Greedy()), (Mine(), Greedy()))


def test_every_processor_for_the_device_has_a_digest() -> None:
    """No two digests are equal."""
    safe = [e.make(e.example) for e in CATALOGUE.values() if e.make(e.example).device_safe]  # type: ignore[attr-defined]
    digests = [chain_digest(processor, Greedy()) for processor in safe]

    assert None not in digests
    assert len(safe) == len(set(digests)) > 15


def test_knows_which_chains_have_rows() -> None:
    """Tensors that a processor derives from its options are not parameters."""
    assert has_rows(Temperature(1.0) | TopK([1, 2]))
    assert not has_rows(Temperature(2.0) | SuppressTokens([1, 2]))
    assert not has_rows(None)
