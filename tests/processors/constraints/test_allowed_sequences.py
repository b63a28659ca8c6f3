"""Generated tokens that are one of several sequences."""

import pickle
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import compile_decoder
from decodekit.processors import AllowedSequences

from ..by_hand import after, stays

TRIE = [[1, 2], [1, 2, 3], [4], [1, 0, 2]]
END = 5


def allowed(ids: list[int], **options: Any) -> list[int]:
    """The tokens allowed after the generated *ids*."""
    return stays(AllowedSequences(TRIE, END), [0.0] * 6, after(ids, **options))


class TestAllowedSequences:
    def test_follows_the_trie(self) -> None:
        """From the first new token on; the prompt does not count."""
        assert [1, 4] == allowed([])
        assert [0, 2] == allowed([1])
        assert [1, 4] == allowed([3, 3], prompt=2)

    def test_allows_the_end_after_a_whole_sequence(self) -> None:
        """And its continuation, where another is longer; then the end alone."""
        assert [3, END] == allowed([1, 2])
        assert [END] == allowed([1, 2, 3])
        assert [END] == allowed([1, 2, END])
        assert [END] == allowed([1, 2, END, END])

    def test_leaves_no_token_after_other_tokens(self) -> None:
        """Nor after an end in the middle of a sequence."""
        assert [] == allowed([2])
        assert [] == allowed([1, END])

    def test_a_sequence_may_hold_the_end_itself(self) -> None:
        """As a token like any other."""
        processor = AllowedSequences([[1, END, 2]], END)

        assert [2] == stays(processor, [0.0] * 6, after([1, END]))

    def test_survives_pickling_of_a_long_sequence(self) -> None:
        """A trie deeper than Python's recursion."""
        processor = pickle.loads(pickle.dumps(AllowedSequences([[1] * 5000], END)))

        assert [1] == stays(processor, [0.0] * 6, after([1] * 4999))
        assert [END] == stays(processor, [0.0] * 6, after([1] * 5000))

    def test_refuses_none(self) -> None:
        """No sequence, an empty one, and no end."""
        with pytest.raises(ValueError, match="'sequences' must name at least one"):
            AllowedSequences([], END)
        with pytest.raises(ValueError, match="at least one id: got an empty one"):
            AllowedSequences([[]], END)
        with pytest.raises(ValueError, match="'eos' must name at least one"):
            AllowedSequences(TRIE, ())

    def test_equals_transformers_prefix_function(self) -> None:
        """Greedy, over the trie as a function of the prefix."""
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            eos_token_id=END,
            pad_token_id=0,
        )
        model = LlamaForCausalLM(config).double().eval()
        rng = torch.Generator().manual_seed(1)
        sequences = torch.randint(6, 12, (60, 4), generator=rng).tolist()

        def function(row: int, ids: torch.Tensor) -> list[int]:
            new = ids.tolist()[3:]
            fitting = [one for one in sequences if one[: len(new)] == new]
            return [one[len(new)] for one in fitting if len(one) > len(new)] or [END]

        prompts = torch.randint(6, 40, (3, 3), generator=rng)
        expected = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            prefix_allowed_tokens_fn=function,
            max_new_tokens=6,
            do_sample=False,
        )
        generator = Generator(
            compile_decoder(model, batch_size=3, max_length=16, widths=(1, 4), target="eager"),
            processors=AllowedSequences(sequences, END),
            stop=MaxNewTokens(6),
            end_of_sequence=END,
        )

        assert expected.tolist() == generator(prompts).sequences
