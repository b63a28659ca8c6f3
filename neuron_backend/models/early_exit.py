"""Early exit: the first layers of a model, with its norm and head, over the same weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from ..kv_cache.geometry import Geometry
from .unsupported import UnsupportedArchitecture
from .weights import copy_sharing_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")


def first_layers(model: Model, num_layers: int) -> Model:
    """
    The first *num_layers* layers of *model*, its final norm and its head.

    Modules and config are copied and weights are shared; *model* is not modified.

    Args:
        model: A causal LM whose layers are one ``ModuleList``.

        num_layers: Layers to keep, from 1 to all.

    Raises:
        UnsupportedArchitecture: Its layers are not one list, or depend on removed layers.

        ValueError: *num_layers* is out of range.
    """
    whole = Geometry.of(model)
    _check(num_layers, len(whole.layers))
    cut = copy_sharing_weights(model)
    owner, name = _layer_list(cut, len(whole.layers))
    setattr(owner, name, getattr(owner, name)[:num_layers])
    for config in _configs(cut, owner):
        _shorten(config, len(whole.layers), num_layers)
    if Geometry.of(cut).layers != whole.layers[:num_layers]:
        raise UnsupportedArchitecture(
            whole.architecture, f"its first {num_layers} layers alone cache other keys and values"
        )
    return cut


@contextmanager
def only_first_layers(model: "PreTrainedModel", num_layers: int, layers: int) -> Iterator[None]:
    """Context in which *model* itself has the first *num_layers* of its *layers* alone."""
    owner, name = _layer_list(model, layers)
    whole, configs = getattr(owner, name), [(config, dict(vars(config))) for config in _configs(model, owner)]
    try:
        setattr(owner, name, whole[:num_layers])
        for config, _ in configs:
            _shorten(config, layers, num_layers)
        yield
    finally:
        setattr(owner, name, whole)
        for config, settings in configs:
            vars(config).update(settings)


def layers_of(model: "PreTrainedModel", layers: int) -> nn.ModuleList | None:
    """The list of *model*'s *layers*; None if they are not one list."""
    found = list(_outermost_lists(model, layers))
    if len(found) != 1:
        return None
    owner, name = found[0]
    listed: nn.ModuleList = getattr(owner, name)
    return listed


def _check(num_layers: int, layers: int) -> None:
    whole = isinstance(num_layers, int) and not isinstance(num_layers, bool)
    if not whole or not 1 <= num_layers <= layers:
        raise ValueError(f"'num_layers' must be an integer >= 1 and <= {layers}: got {num_layers!r}")


def _layer_list(model: "PreTrainedModel", layers: int) -> tuple[nn.Module, str]:
    """The module that owns the list of layers, and the list's name there."""
    found = list(_outermost_lists(model, layers))
    if len(found) != 1:
        raise UnsupportedArchitecture(
            type(model).__name__,
            f"an early exit needs a model whose {layers} layers are one ModuleList: got {len(found)} of them",
        )
    return found[0]


def _outermost_lists(module: nn.Module, length: int) -> Iterator[tuple[nn.Module, str]]:
    """Lists of *length* modules, except those inside another list, such as a layer's experts."""
    for name, child in module.named_children():
        if not isinstance(child, nn.ModuleList):
            yield from _outermost_lists(child, length)
        elif len(child) == length:
            yield module, name


def _configs(model: "PreTrainedModel", owner: nn.Module) -> list[Any]:
    """The configs that hold the number of layers: usually one, shared by all modules."""
    found = [model.config.get_text_config(decoder=True), getattr(owner, "config", None)]
    return list({id(config): config for config in found if config is not None}.values())


def _shorten(config: Any, layers: int, num_layers: int) -> None:
    config.num_hidden_layers = num_layers
    for name, value in list(vars(config).items()):
        # Per-layer settings: layer_types, mlp_layer_types, no_rope_layers, ...
        if "layer" in name and isinstance(value, list | tuple) and len(value) == layers:
            setattr(config, name, value[:num_layers])
    if config.model_type == "gpt_neo":
        # Its config is read as the layers' types and how often they repeat, which must give as many layers.
        config.attention_types = [[list(config.attention_layers), 1]]
