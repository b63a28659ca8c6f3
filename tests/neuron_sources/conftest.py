"""What the tests over real sources run under."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from ..neuron_backend.adapters.systems import Reference


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """A Llama whose text varies."""
    return tiny_model("llama", torch.float64)


@pytest.fixture(scope="module")
def reference(model: PreTrainedModel) -> Reference:
    """The stock model."""
    return Reference(model)
