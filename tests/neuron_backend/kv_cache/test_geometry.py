import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DummyLayer, DynamicIndexedLayer

from decodekit.neuron_backend import UnsupportedArchitecture
from decodekit.neuron_backend.kv_cache.geometry import Geometry, LayerGeometry, _plain_layers


def test_is_read_off_the_cache(tiny_model):
    """Grouped heads and an unusual head size are read from the cache."""
    geometry = Geometry.of(tiny_model("gemma2"))

    assert geometry.architecture == "Gemma2ForCausalLM"
    assert (LayerGeometry(2, 12, 2, 12),) * 2 == geometry.layers
    assert (61, torch.float32) == (geometry.vocab_size, geometry.cache_dtype)


def test_a_model_without_logits_is_refused(tiny_model):
    """The bare transformer below a language model scores nothing."""
    with pytest.raises(UnsupportedArchitecture, match="LlamaModel is not supported: it gives no logits"):
        Geometry.of(tiny_model("llama").model)


def test_a_model_that_does_not_run_is_refused(tiny_model, monkeypatch):
    """With the original error as the cause."""
    model = tiny_model("llama")
    monkeypatch.setattr(model, "forward", lambda **inputs: 1 / 0)

    with pytest.raises(UnsupportedArchitecture, match="does not run on two tokens") as caught:
        Geometry.of(model)

    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_layers_that_look_at_anothers_keep_nothing(tiny_model):
    """Gemma-3n has two caches for its four layers here."""
    assert (LayerGeometry(2, 8, 2, 8),) * 2 == Geometry.of(tiny_model("gemma3n")).layers


def test_a_cache_of_nothing_is_refused():
    """Such a model has no KV cache."""
    cache = DynamicCache()
    cache.layers = [DummyLayer()]

    with pytest.raises(UnsupportedArchitecture, match="Toy is not supported: it keeps no key/value cache"):
        _plain_layers("Toy", cache)


def test_layers_with_other_state_are_refused_by_name():
    """A subclass of a plain layer keeps more than keys and values."""
    cache = DynamicCache()
    cache.layers = [DynamicIndexedLayer()]

    with pytest.raises(
        UnsupportedArchitecture, match="Toy is not supported: layer 0 keeps a DynamicIndexedLayer"
    ):
        _plain_layers("Toy", cache)
