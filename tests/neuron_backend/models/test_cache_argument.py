"""Models of transformers before and since 5.24, which renamed the cache."""

from typing import Any

import pytest
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast, ModelOutput

from decodekit.neuron_backend.models.cache_argument import cache_argument, returned_cache


class Before(nn.Module):
    """A model, or remote code, of the earlier name."""

    def forward(self, input_ids: Tensor, past_key_values: Any = None) -> None:
        """Nothing."""


class Since(nn.Module):
    """A model of the later name."""

    def forward(self, input_ids: Tensor, cache: Any = None) -> None:
        """Nothing."""


@pytest.mark.parametrize(("model", "expected"), [(Before(), "past_key_values"), (Since(), "cache")])
def test_the_argument_is_the_forwards(model: Any, expected: str) -> None:
    """Whatever transformers is installed."""
    assert expected == cache_argument(model)


def test_the_returned_cache_has_either_name() -> None:
    """None where there is none."""
    kept = object()

    class Later(dict[str, Any]):
        cache = kept

    class Earlier(dict[str, Any]):
        past_key_values = kept

    assert returned_cache(Later()) is returned_cache(Earlier()) is kept
    assert returned_cache(ModelOutput(logits=1)) is None
    assert returned_cache(CausalLMOutputWithPast(logits=None)) is None
