"""Shapes of a model's keys and values, determined by running it."""

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from ..models.cache_argument import returned_cache
from ..models.unsupported import UnsupportedArchitecture

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@attrs.frozen
class LayerGeometry:
    """Heads and head dimensions of one layer's keys and values, which may differ."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


@attrs.frozen
class Geometry:
    """Shapes of a model's KV cache and logits."""

    architecture: str
    layers: tuple[LayerGeometry, ...]
    vocab_size: int
    cache_dtype: torch.dtype

    @classmethod
    def of(cls, model: "PreTrainedModel") -> "Geometry":
        """
        The geometry of *model*, from the cache of a forward over two tokens.

        Raises:
            UnsupportedArchitecture: The model's state is not plain keys and values.
        """
        name = type(model).__name__
        output = _run(name, model)
        layers = _plain_layers(name, returned_cache(output))
        return cls(
            architecture=name,
            layers=tuple(_geometry(layer.keys, layer.values) for layer in layers),
            vocab_size=output.logits.shape[-1],
            cache_dtype=layers[0].keys.dtype,
        )


def _run(architecture: str, model: "PreTrainedModel") -> Any:
    ids = torch.zeros(1, 2, dtype=torch.int64)
    try:
        with torch.no_grad():
            output = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True)
    except Exception as error:
        raise UnsupportedArchitecture(architecture, f"it does not run on two tokens: {error!r}") from error
    if getattr(output, "logits", None) is None:
        raise UnsupportedArchitecture(
            architecture, "it gives no logits; AutoModelForCausalLM loads one that does"
        )
    return output


def _geometry(keys: Tensor, values: Tensor) -> LayerGeometry:
    return LayerGeometry(keys.shape[1], keys.shape[3], values.shape[1], values.shape[3])


def _plain_layers(architecture: str, cache: Any) -> list[Any]:
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    layers = list(getattr(cache, "layers", None) or ())
    # The last layers of some models (Gemma-3n) share an earlier layer's cache and have none of their own.
    while layers and type(layers[-1]).__name__ == "DummyLayer":
        layers.pop()
    if not layers:
        raise UnsupportedArchitecture(
            architecture, "it keeps no key/value cache; recurrent state cannot be rewound"
        )
    for index, layer in enumerate(layers):
        # Subclasses add other state, so the exact type counts.
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or layer.keys is None:
            raise UnsupportedArchitecture(
                architecture,
                f"layer {index} keeps a {type(layer).__name__}, not plain keys and values; "
                "other state, such as recurrent or convolutional, cannot be rewound",
            )
    return layers
