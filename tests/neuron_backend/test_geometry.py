import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicIndexedLayer

from decodekit.neuron_backend import UnsupportedArchitecture
from decodekit.neuron_backend.geometry import Geometry, LayerGeometry, _plain_layers


def test_is_read_off_the_cache(tiny_model):
    """Grouped heads and an unusual head size are found by looking."""
    geometry = Geometry.of(tiny_model("gemma2"))

    assert geometry.architecture == "Gemma2ForCausalLM"
    assert (LayerGeometry(2, 12, 2, 12),) * 2 == geometry.layers
    assert (61, torch.float32) == (geometry.vocab_size, geometry.cache_dtype)


def test_layers_with_other_state_are_refused_by_name():
    """A subclass of a plain layer keeps more than keys and values."""
    cache = DynamicCache()
    cache.layers = [DynamicIndexedLayer()]

    with pytest.raises(
        UnsupportedArchitecture, match="Toy is not supported: layer 0 keeps a DynamicIndexedLayer"
    ):
        _plain_layers("Toy", cache)
