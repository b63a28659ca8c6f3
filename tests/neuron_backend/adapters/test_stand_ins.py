"""The stand-ins fail as the libraries do when called wrongly, so that the other tests prove something."""

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from .nxd_stand_in import NxDModel
from .optimum_stand_in import OptimumModel
from .systems import Reference
from .tnx_stand_in import TnxModel

TEXT = [5, 9, 2, 44, 17, 3, 8]


@pytest.fixture(scope="module")
def model(tiny_model) -> PreTrainedModel:
    return tiny_model("llama", torch.float64)


@pytest.fixture(scope="module")
def reference(model: PreTrainedModel) -> Reference:
    return Reference(model)


def call_nxd(model: NxDModel, ids: list[list[int]], positions: list[list[int]], rows: list[int]) -> Tensor:
    at = torch.tensor(positions)
    mask = (torch.arange(max(1, int(at.max()))) < at[:, :1]).long()
    if at.min() == 0:
        mask = torch.ones_like(at)
    return model(
        input_ids=torch.tensor(ids),
        attention_mask=mask,
        position_ids=at,
        seq_ids=torch.tensor(rows),
        sampling_params=torch.ones(len(rows), 3),
    ).logits


def prompt(model: NxDModel, text: list[int], row: int) -> Tensor:
    return call_nxd(model, [text], [list(range(len(text)))], [row])


def agree(logits: Tensor, expected: Tensor) -> bool:
    return torch.allclose(logits, expected, atol=1e-5, rtol=1e-5)


class TestNxD:
    """neuronx-distributed-inference."""

    def test_correct_calls_are_right(self, model, reference):
        """One prompt per row, then a token for each."""
        system = NxDModel(model, batch_size=2)
        assert agree(prompt(system, TEXT, 0)[0, -1], reference.after(tuple(TEXT)))
        assert agree(prompt(system, TEXT[:3], 1)[0, -1], reference.after(tuple(TEXT[:3])))

        logits = call_nxd(system, [[1], [2]], [[7], [3]], [0, 1])

        assert agree(logits[0, 0], reference.after((*TEXT, 1)))
        assert agree(logits[1, 0], reference.after((*TEXT[:3], 2)))

    def test_a_row_at_position_0_takes_all_rows_to_context_encoding(self, model, reference):
        """A new row's first token beside a running row: the running row is treated as a prompt and lost."""
        system = NxDModel(model, batch_size=2)
        prompt(system, TEXT, 0)

        mixed = call_nxd(system, [[1], [2]], [[7], [0]], [0, 1])
        after = call_nxd(system, [[4], [4]], [[8], [1]], [0, 1])

        assert "context_encoding_model" == system.routed[1]
        assert not agree(mixed[0, 0], reference.after((*TEXT, 1)))
        assert not agree(after[0, 0], reference.after((*TEXT, 1, 4)))

    def test_rows_left_out_of_a_call_are_overwritten(self, model, reference):
        """A token for row 1 alone is written to row 0 as well."""
        system = NxDModel(model, batch_size=2)
        prompt(system, TEXT, 0)
        prompt(system, TEXT[:3], 1)

        call_nxd(system, [[2]], [[3]], [1])
        after = call_nxd(system, [[1], [4]], [[7], [4]], [0, 1])

        assert not agree(after[0, 0], reference.after((*TEXT, 1)))

    def test_a_repeated_last_token_spoils_a_verification(self, model, reference):
        """Its second copy attends to its first, so their keys differ, and which is kept is undefined."""
        system = NxDModel(model, batch_size=1, speculation_length=4, before_2_22=True)
        prompt(system, TEXT, 0)

        scored = call_nxd(system, [[1, 2, 2, 2]], [[7, 8, 8, 8]], [0])
        after = call_nxd(system, [[4]], [[9]], [0])

        assert agree(scored[0, 1], reference.after((*TEXT, 1, 2)))
        assert not agree(after[0, 0], reference.after((*TEXT, 1, 2, 4)))

    def test_a_prompt_of_one_token_is_scored_at_padding(self, model, reference):
        """The library pads with position 1, which is the highest."""
        assert not agree(prompt(NxDModel(model, batch_size=1), [5], 0)[0, -1], reference.after((5,)))

    def test_a_prompt_overwrites_its_whole_bucket(self, model, reference):
        """Encoding the same first tokens again loses the tokens after them."""
        system = NxDModel(model, batch_size=1)
        prompt(system, TEXT, 0)
        prompt(system, TEXT[:3], 0)

        assert not agree(call_nxd(system, [[1]], [[7]], [0])[0, 0], reference.after((*TEXT, 1)))

    def test_lengths_beyond_the_buckets_raise(self, model):
        """Of a prompt, and of a row with the columns to be verified."""
        system = NxDModel(model, batch_size=1, speculation_length=4)
        with pytest.raises(ValueError, match="exceeds largest bucket"):
            prompt(system, list(range(25)), 0)
        with pytest.raises(ValueError, match="exceeds largest bucket"):
            call_nxd(system, [[1, 2, 3, 4]], [[45, 46, 47, 48]], [0])

    def test_a_width_without_a_graph_raises(self, model):
        """Two columns are neither a token nor a verification."""
        system = NxDModel(model, batch_size=1, speculation_length=4, before_2_22=True)
        with pytest.raises(RuntimeError, match="input_ids"):
            call_nxd(system, [[1, 2]], [[7, 8]], [0])

    def test_a_model_that_verifies_has_no_program_of_one_token(self, model):
        """Since SDK 2.22."""
        system = NxDModel(model, batch_size=1, speculation_length=4)
        with pytest.raises(AttributeError, match="token_generation_model"):
            call_nxd(system, [[1]], [[7]], [0])

    def test_sampling_params_default_to_the_rows_of_the_cache(self, model):
        """Context encoding of one row takes one row of them, even in a model that does not sample."""
        with pytest.raises(RuntimeError, match=r"sampling_params: expected \(1, 3\), got \(2, 3\)"):
            NxDModel(model, batch_size=2)(
                input_ids=torch.tensor([TEXT]),
                attention_mask=torch.ones(1, 7),
                position_ids=torch.arange(7)[None],
                seq_ids=torch.tensor([0]),
            )


def call_optimum(model: OptimumModel, ids: list[list[int]], positions: list[list[int]]) -> Tensor:
    rows = torch.arange(len(ids))
    return model.forward(torch.tensor(ids), torch.tensor(positions), rows, torch.ones(len(ids), 3))


class TestOptimum:
    """optimum-neuron."""

    def test_a_single_token_at_position_0_is_not_a_prompt(self, model, reference):
        """It goes through token generation, even beside running rows."""
        system = OptimumModel(model, batch_size=2)

        logits = call_optimum(system, [[5], [9]], [[0], [0]])

        assert ["token"] == system.routed
        assert agree(logits[0, -1], reference.after((5,)))

    def test_a_verification_with_a_row_at_position_0_is_taken_for_prompts(self, model, reference):
        """And the other row's tokens are lost."""
        system = OptimumModel(model, batch_size=2, speculation_length=3)
        for position, token in enumerate(TEXT):
            call_optimum(system, [[token], [token]], [[position], [position]])

        call_optimum(system, [[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 1, 2]])
        after = call_optimum(system, [[4], [4]], [[10], [3]])

        assert "context" == system.routed[-2]
        assert not agree(after[0, 0], reference.after((*TEXT, 1, 2, 3, 4)))

    def test_sampling_params_are_required(self, model):
        """The graph has an input for them even if it does not sample."""
        with pytest.raises(AttributeError):
            OptimumModel(model, batch_size=1).forward(
                torch.tensor([[5]]), torch.tensor([[3]]), torch.arange(1)
            )


class TestTnx:
    """transformers-neuronx."""

    def test_rows_left_out_lose_their_first_token(self, model, reference):
        """Continuous batching gives them token 0 at position 0."""
        system = TnxModel(model, "continuous", batch_size=2)
        ids = torch.zeros(1, 8, dtype=torch.int64)
        cache_ids = torch.zeros(1, 8, dtype=torch.int32)
        ids[0, :7], cache_ids[0, :7] = torch.tensor(TEXT), torch.arange(7, dtype=torch.int32)
        first = system(ids, cache_ids, torch.tensor([0]))
        assert agree(first[0], reference.after(tuple(TEXT)))

        token = torch.tensor([[9]]), torch.tensor([[0]])
        system(*token, torch.tensor([1]))
        both = torch.tensor([[1], [2]]), torch.tensor([[7], [1]])
        after = system(*both, torch.tensor([0, 1]))

        assert not agree(after[0], reference.after((*TEXT, 1)))
        assert agree(after[1], reference.after((9, 2)))

    def test_ragged_prompts_at_one_position_are_scored_at_padding(self, model, reference):
        """One number selects the scored column of all rows."""
        system = TnxModel(model, "1-D", batch_size=2)
        ids = torch.tensor([TEXT, [*TEXT[:3], 0, 0, 0, 0]])

        logits = system(ids)

        assert agree(logits[0], reference.after(tuple(TEXT)))
        assert not agree(logits[1], reference.after(tuple(TEXT[:3])))

    def test_ids_and_cache_ids_have_one_dtype_under_continuous_batching(self, model):
        """The library scatters both into tensors of the ids' dtype."""
        with pytest.raises(TypeError, match=r"cache_ids: expected torch.int64, got torch.int32"):
            TnxModel(model, "continuous", batch_size=2)(
                torch.tensor([[5]]), torch.tensor([[3]], dtype=torch.int32), torch.tensor([0])
            )

    def test_a_verification_without_start_ids_writes_to_row_0(self, model, reference):
        """With a position per row; the row it belongs to does not get its tokens."""
        for start_ids, right in ((None, False), (torch.arange(2), True)):
            system = TnxModel(model, "2-D", batch_size=2, speculation_length=2)
            for position, token in enumerate(TEXT):
                at = torch.full((2, 1), position, dtype=torch.int32)
                system(torch.full((2, 1), token), at)
            at = torch.tensor([[7, 8], [7, 8]], dtype=torch.int32)
            system.speculative_forward(torch.tensor([[1, 2], [3, 4]]), at, start_ids, 2)

            after = system(torch.tensor([[5], [5]]), torch.full((2, 1), 9, dtype=torch.int32))

            assert right == agree(after[1], reference.after((*TEXT, 3, 4, 5)))

    def test_cache_ids_are_int32(self, model):
        """As the library's graphs take them."""
        with pytest.raises(TypeError, match="cache_ids"):
            TnxModel(model, "1-D", batch_size=1)(torch.tensor([[5]]), torch.tensor([3]))
