"""A chain in the input batch of vLLM Neuron's runner."""

import enum
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.decoding.history import History
from decodekit.processors import (
    Grammar,
    PrefixFunction,
    RepetitionPenalty,
    Temperature,
    TopK,
    attach_to_vllm_neuron,
)

from ..by_hand import after
from ..grammar.languages import Brackets

CHAIN = RepetitionPenalty(1.5)


class Direction(enum.Enum):
    """As vLLM's."""

    UNIDIRECTIONAL = 0
    SWAP = 1


def runner(sampling: Any = None, speculative: Any = None) -> Any:
    """What is read of a runner that has loaded its model."""
    return SimpleNamespace(
        model=SimpleNamespace(neuron_config=SimpleNamespace(on_device_sampling_config=sampling)),
        speculative_config=speculative,
        input_batch=SimpleNamespace(logitsprocs=SimpleNamespace(non_argmax_invariant=[])),
    )


def attached(chain: Any = CHAIN) -> Any:
    """The processor in the batch."""
    one = runner()
    attach_to_vllm_neuron(one, chain)
    (processor,) = one.input_batch.logitsprocs.non_argmax_invariant
    return processor


def wants(seed: int | None = None, **extra: Any) -> Any:
    """What a request asks for."""
    return SimpleNamespace(seed=seed, extra_args=extra or None)


def changes(removed: Any = (), added: Any = (), moved: Any = ()) -> Any:
    """A batch update."""
    return SimpleNamespace(removed=removed, added=added, moved=moved)


class Tokens(list[int]):
    """A list that can be referred to weakly."""


def logits(rows: int) -> Tensor:
    """Logits of some rows."""
    return 3 * torch.randn(rows, 12, generator=torch.Generator().manual_seed(rows))


class TestRows:
    def test_follow_removals_additions_and_moves(self) -> None:
        """In this order; a swap exchanges two rows."""
        processor, given = attached(), logits(2)
        processor.update_state(changes(added=[(row, wants(), [row + 3], []) for row in range(3)]))
        processor.update_state(changes(removed=[0], moved=[(2, 0, Direction.UNIDIRECTIONAL)]))
        once = processor.apply(given)
        processor.update_state(changes(moved=[(0, 1, Direction.SWAP)]))
        processor.update_state(None)
        swapped = processor.apply(given)

        for found, prompts in ((once, [5, 4]), (swapped, [4, 5])):
            for row, token in enumerate(prompts):
                assert torch.equal(CHAIN(given[row][None, None], after([token], 1))[0, 0], found[row])

    def test_read_the_tokens_that_a_request_has_by_now(self) -> None:
        """Its list of new tokens grows."""
        processor, given, new = attached(), logits(1), [7]
        processor.update_state(changes(added=[(0, wants(), [3], new)]))
        new.append(9)

        assert torch.equal(CHAIN(given[None], after([3, 7, 9], 1))[0], processor.apply(given))

    @pytest.mark.parametrize(
        "leaving",
        [changes(removed=[0]), changes(moved=[(1, 0, Direction.UNIDIRECTIONAL)])],
        ids=["removed", "moved over"],
    )
    def test_forget_requests_that_have_left(self, leaving: Any) -> None:
        """Their tokens are not kept."""
        processor, tokens = attached(), Tokens()
        known = weakref.ref(tokens)
        processor.update_state(changes(added=[(0, wants(), [3], tokens), (1, wants(), [4], [])]))
        del tokens
        assert known() is not None

        processor.update_state(leaving)
        assert known() is None

    def test_may_switch_it_off(self) -> None:
        """One row of two; with all of them off the same tensor comes back."""
        processor, given = attached(Temperature(0.5)), logits(2)
        processor.update_state(
            changes(added=[(0, wants(decodekit=False), [3], []), (1, wants(decodekit=1), [3], [])])
        )
        found = processor.apply(given)
        processor.update_state(changes(removed=[1]))

        assert torch.equal(given[0], found[0])
        assert torch.equal(2 * given[1], found[1])
        one = logits(1)
        assert processor.apply(one) is one

    def test_what_is_forbidden_stays_forbidden(self) -> None:
        """By vLLM, before the chain."""
        processor, given = attached(lambda logits, history: torch.zeros_like(logits)), logits(1)
        processor.update_state(changes(added=[(0, wants(), [3], [])]))
        given[0, 4:] = -torch.inf

        assert [0.0] * 4 + [-torch.inf] * 8 == processor.apply(given)[0].tolist()

    def test_streams_are_those_of_the_seeds(self) -> None:
        """Unseeded requests have streams of their own."""
        seen: list[list[int]] = []

        def record(logits: Tensor, history: History) -> Tensor:
            seen.append(history.random_stream.tolist())
            return logits

        processor = attached(record)
        processor.update_state(
            changes(added=[(row, wants(seed), [3], []) for row, seed in enumerate([5, 5, 0, None, None])])
        )
        processor.apply(logits(5))

        ((first, second, *others),) = seen
        assert first == second
        assert 4 == len({first, *others})

    def test_a_prompt_of_embeddings_is_refused(self) -> None:
        """A chain reads ids."""
        with pytest.raises(ValueError, match="a prompt must have token ids for a chain: got embeddings"):
            attached().update_state(changes(added=[(0, wants(), None, [])]))

    def test_runs_for_greedy_requests_too(self) -> None:
        """VLLM leaves out what keeps the argmax."""
        assert not attached().is_argmax_invariant()


class TestRefusals:
    @pytest.mark.parametrize(
        ("one", "message"),
        [
            (runner(sampling=object()), "must sample on the host: .*'on_device_sampling_config': None"),
            (runner(speculative=object()), "must not speculate: .* leave out speculative_config"),
            (SimpleNamespace(model=None), r"call attach_to_vllm_neuron after load_model\(\)"),
        ],
        ids=["samples on the device", "speculates", "no model"],
    )
    def test_a_runner_without_logits(self, one: Any, message: str) -> None:
        """With what to do instead."""
        with pytest.raises(ValueError, match=message):
            attach_to_vllm_neuron(one, CHAIN)

    @pytest.mark.parametrize("chain", [Temperature([0.5, 2.0]), TopK(3) | Grammar([Brackets(2)])])
    def test_parameters_one_per_row(self, chain: Any) -> None:
        """Rows are other requests in every step."""
        one = runner()
        with pytest.raises(ValueError, match="must be one for all requests: got "):
            attach_to_vllm_neuron(one, chain)
        assert [] == one.input_batch.logitsprocs.non_argmax_invariant

    def test_what_is_told_the_number_of_the_row(self) -> None:
        """Rows move."""
        one = runner()
        with pytest.raises(ValueError, match="'chain' must not depend on the numbers of rows"):
            attach_to_vllm_neuron(one, CHAIN | PrefixFunction(lambda row, ids: [row]))
        assert [] == one.input_batch.logitsprocs.non_argmax_invariant

    def test_what_is_no_processor(self) -> None:
        """By name."""
        wrong: Any = 3
        with pytest.raises(TypeError):
            attach_to_vllm_neuron(runner(), wrong)
