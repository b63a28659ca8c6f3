"""
Settings of a GGUF file that transformers' loader leaves out.

RoPE factors of Llama 3.1, a tensor of the file, are applied to the model. Others change its text and are
refused where the config that transformers made of the file does not have them.
The names are those of llama.cpp's ``gguf-py/gguf/constants.py``.
"""

import math
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .unsupported import UnsupportedArchitecture

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_FACTORS = "rope_freqs.weight"
_OFF = 1e29
"""Factors from which on there is no rotation: llama.cpp's converter writes 1e30."""

_LONG_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")


def apply_settings(model: "PreTrainedModel", path: str | PathLike[str]) -> None:
    """
    Apply to *model*, which transformers loaded from the file *path*, what it left out of the file.

    Raises:
        UnsupportedArchitecture: The file has a setting that neither the config has nor this applies. The
            model is as it was.
    """
    import gguf

    reader: Any = gguf.GGUFReader(str(path))
    name = f"the model in {path}"
    _check(name, _settings(reader.fields), {tensor.name for tensor in reader.tensors}, model.config)
    factors = next((tensor.data for tensor in reader.tensors if tensor.name == _FACTORS), None)
    if factors is not None:
        _divide_frequencies(name, model, torch.tensor(factors, dtype=torch.float32).flatten())


def _settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and strings of the file's architecture, by name without its prefix."""
    from gguf import GGUFValueType

    found = {}
    for key, field in fields.items():
        if field.types and field.types[0] != GGUFValueType.ARRAY:
            part = field.parts[field.data[0]]
            text = field.types[0] == GGUFValueType.STRING
            found[key] = bytes(part).decode() if text else part[0].item()
    prefix = f"{found.get('general.architecture')}."
    return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}


def _check(name: str, settings: Mapping[str, Any], tensors: set[str], config: "PretrainedConfig") -> None:
    types = {rope.get("rope_type", "default") for rope in _ropes(config)}
    for tensor in _LONG_FACTORS:
        if tensor in tensors and "longrope" not in types:
            raise UnsupportedArchitecture(
                name, f"{tensor} must be in the config that transformers reads: got RoPE {_listed(types)}"
            )
    scaling = _scaling(settings)
    if scaling not in {"none", *types}:
        raise _left_out(name, "rope.scaling.type", scaling, _listed(types))
    base, bases = settings.get("rope.freq_base"), {rope.get("rope_theta") for rope in _ropes(config)}
    # The file has it in float32.
    if base is not None and not any(
        found is not None and math.isclose(base, found, rel_tol=1e-6) for found in bases
    ):
        raise _left_out(name, "rope.freq_base", base, _listed(bases))
    window, found = settings.get("attention.sliding_window"), getattr(config, "sliding_window", None)
    # 0 stands for no window, and one as long as the context shows all of it.
    if window and window < settings.get("context_length", math.inf) and window != found:
        raise _left_out(name, "attention.sliding_window", window, str(found))


def _scaling(settings: Mapping[str, Any]) -> str:
    """The type of RoPE scaling; llama.cpp reads a factor without a type as linear, and 0 as no factor."""
    kind = str(settings.get("rope.scaling.type", "linear"))
    factor = settings.get("rope.scaling.factor", settings.get("rope.scale_linear", 0))
    return "none" if kind == "linear" and factor in (0, 1) else kind


def _ropes(config: "PretrainedConfig") -> Iterator[Mapping[str, Any]]:
    """The RoPE parameters of all layers, or of each type of layer."""
    # transformers before 5 has a base and a scaling.
    older = {
        "rope_theta": getattr(config, "rope_theta", None),
        **(getattr(config, "rope_scaling", None) or {}),
    }
    parameters = getattr(config, "rope_parameters", None) or older
    nested = [each for each in parameters.values() if isinstance(each, Mapping)]
    yield from nested or [parameters]


def _left_out(name: str, setting: str, value: object, found: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        name,
        f"{setting} must be in the config that transformers reads, whose own is {found}: got {value}",
    )


def _listed(values: set[Any]) -> str:
    return " and ".join(sorted(map(str, values))) or "none"


def _has_factors(rope: Mapping[str, Any], factors: Tensor) -> bool:
    """Whether *rope* is RoPE of a part of each head, as Gemma 4's, which *factors* turn off in the rest."""
    if rope.get("rope_type") != "proportional":
        return False
    rotated = int(rope.get("partial_rotary_factor", 1.0) * len(factors))
    return bool((factors[:rotated] == 1).all() and (factors[rotated:] >= _OFF).all())


def _divide_frequencies(name: str, model: "PreTrainedModel", factors: Tensor) -> None:
    """
    Divide the RoPE frequencies of *model* by *factors*, ``[head_dim / 2]``, in its config too.

    The config has them as ``"longrope"`` of one length, so that a saved decoder is an ordinary folder.
    """
    config: Any = model.config
    if bool((factors == 1).all()) or any(_has_factors(rope, factors) for rope in _ropes(config)):
        return
    rotary = [each for each in model.named_modules() if isinstance(getattr(each[1], "rope_type", None), str)]
    # transformers before 5 has the base apart from the scaling.
    together = hasattr(config, "rope_parameters")
    parameters = (config.rope_parameters if together else config.rope_scaling) or {}
    if len(rotary) != 1 or parameters.get("rope_type", "default") != "default":
        raise UnsupportedArchitecture(
            name, f"{_FACTORS} must be for one RoPE without scaling: got {len(rotary)}, {parameters}"
        )
    path, module = rotary[0]
    size = module.get_buffer("inv_freq").numel()
    if len(factors) != size or not bool((factors > 0).all()):
        raise UnsupportedArchitecture(
            name, f"{_FACTORS} must have {size} factors > 0: got {len(factors)} from {factors.min().item()}"
        )
    scaling = {
        **parameters,
        "rope_type": "longrope",
        "short_factor": factors.tolist(),
        "long_factor": factors.tolist(),
        "attention_factor": 1.0,
        "factor": 1.0,
        "original_max_position_embeddings": config.max_position_embeddings,
    }
    if together:
        config.rope_parameters = scaling
    else:
        config.rope_scaling = scaling
    made: Any = type(module)
    model.set_submodule(path, made(config))
