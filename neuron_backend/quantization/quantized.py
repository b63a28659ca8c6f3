"""Weight quantization of a model's linear layers, and a report of how weights are stored."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor, nn

from .float8_linear import Float8Linear
from .int4_linear import GROUP, Int4Linear
from .int8_linear import Int8Linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.pytorch_utils import Conv1D

FORMATS = ("int8", "int4", "float8")

QuantizedLinear = Int8Linear | Int4Linear

_CLASSES: dict[str, type[Int8Linear] | type[Int4Linear]] = {
    "int8": Int8Linear,
    "int4": Int4Linear,
    "float8": Float8Linear,
}


@attrs.frozen
class Weights:
    """How the weights of a model are stored."""

    layers: dict[str, str]
    """Name of each quantised layer to its format, ``"int8"``, ``"int4"`` or ``"float8"``."""

    kept: dict[str, str]
    """Name of each matrix that is not quantised to the reason."""

    bytes: int
    """Size of all weights; a tensor shared by two layers counts once."""

    @classmethod
    def of(cls, model: nn.Module) -> "Weights":
        """The report for *model*."""
        layers = {name: layer.storage for name, layer in _quantized(model).items()}
        tensors = {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}
        return cls(layers, _kept(model), sum(tensor.nbytes for tensor in tensors.values()))

    def __str__(self) -> str:
        """One line."""
        formats = sorted(set(self.layers.values()))
        counted = [f"{list(self.layers.values()).count(each)} layers {each}" for each in formats]
        return ", ".join([*counted, f"{len(self.kept)} matrices kept", f"{self.bytes:,} bytes"])


def check_format(weights: str | None) -> None:
    """
    Reject an unknown weight format.

    Raises:
        ValueError: *weights* is neither in :data:`FORMATS` nor None.
    """
    if weights is not None and weights not in FORMATS:
        raise ValueError(f"'weights' must be one of {', '.join(FORMATS)} or None: got {weights!r}")


def quantize(model: "PreTrainedModel", weights: str) -> None:
    """
    Replace the linear layers of *model* by quantised ones.

    Covers every ``Linear`` and every ``Conv1D`` (GPT-2's transposed linear layer). Embeddings are kept, and
    so are matrices outside such layers, such as stacked experts. The head is untied from the embedding if
    they were tied, and is int8 in every format: an int4 head alone makes the divergence of the bundled
    target model 1.5 times as large, an int8 head no larger.

    Args:
        model: Its modules are replaced; its tensors are not written.

        weights: ``"int8"``, ``"int4"`` or ``"float8"``.

    Raises:
        ValueError: A weight is not finite, there is nothing to quantise, or a layer is already quantised.
    """
    if done := _quantized(model):
        raise ValueError(
            f"'weights' must be None for a model that is quantised: got {weights!r}, "
            f"and {len(done)} layers that are"
        )
    head, layers = _head(model), _linear(model)
    formats = {
        name: storage
        for name, layer in layers.items()
        if (storage := _storage("int8" if layer is head else weights, _weight(layer))) is not None
    }
    if not formats:
        raise ValueError(
            f"'weights' must be None for a model without linear layers to quantise: got {weights!r}"
        )
    fresh: dict[str, QuantizedLinear] = {}
    for name, storage in formats.items():
        try:
            fresh[name] = _CLASSES[storage].of(_weight(layers[name]), layers[name].bias)
        except ValueError as error:
            raise ValueError(f"{error} in {name}") from error
    _replace(model, fresh)


def replace_empty(model: "PreTrainedModel", layers: Mapping[str, str], dtype: torch.dtype) -> None:
    """
    Replace *layers* of *model* by quantised ones with uninitialised weights, to be loaded.

    Args:
        model: Its modules are replaced.

        layers: Format by name, as :attr:`Weights.layers`.

        dtype: Dtype of the scales.

    Raises:
        ValueError: *model* has no such linear layer, or the format is unknown.
    """
    linear = _linear(model)
    fresh: dict[str, QuantizedLinear] = {}
    for name, storage in layers.items():
        if name not in linear:
            raise ValueError(f"a quantised layer must be a linear one of the model: got {name!r}")
        out_features, in_features = _weight(linear[name]).shape
        if storage not in _CLASSES:
            raise ValueError(f"the format of {name} must be one of {', '.join(FORMATS)}: got {storage!r}")
        fresh[name] = _CLASSES[storage].empty(out_features, in_features, linear[name].bias, dtype)
    _replace(model, fresh)


def _replace(model: "PreTrainedModel", fresh: Mapping[str, QuantizedLinear]) -> None:
    if any(model.get_submodule(name) is _head(model) for name in fresh):
        # The quantised head is no longer tied to the embedding, and must not be tied again.
        model.config.tie_word_embeddings = False
    for name, layer in fresh.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, layer.train(False))


def _head(model: "PreTrainedModel") -> nn.Module | None:
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def _linear(model: nn.Module) -> "dict[str, nn.Linear | Conv1D]":
    from transformers.pytorch_utils import Conv1D

    # A subclass may use its weight otherwise, so the exact type counts.
    return {name: layer for name, layer in model.named_modules() if type(layer) in (nn.Linear, Conv1D)}


def _quantized(model: nn.Module) -> dict[str, QuantizedLinear]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedLinear)}


def _weight(layer: "nn.Linear | Conv1D") -> Tensor:
    """``[out, in]``."""
    weight: Tensor = layer.weight if isinstance(layer, nn.Linear) else layer.weight.T
    return weight


def _storage(weights: str, weight: Tensor) -> str | None:
    whole = weights != "int4" or weight.shape[1] % GROUP == 0
    return weights if whole and weight.numel() else None


def _kept(model: nn.Module) -> dict[str, str]:
    from transformers.pytorch_utils import Conv1D

    kept = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.Linear | Conv1D):
            kept[name] = f"{_weight(owner).shape[1]} inputs are no multiple of {GROUP}"
        elif isinstance(owner, nn.Embedding):
            kept[name] = "an embedding"
        else:
            kept[name] = f"of a {type(owner).__name__}, which is no linear layer"
    return kept
