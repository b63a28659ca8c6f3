"""
Settings of a GGUF file that transformers' loader leaves out.

A base, a linear scaling, a window and biases go into the config; RoPE factors of Llama 3.1, a tensor of the
file, into the model; ends of turns into the generation config. Others change its text and are refused where
the config that transformers made of the file lacks them. The names are those of llama.cpp's
``gguf-py/gguf/constants.py``.
"""

import math
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...decoding.validation import as_several
from .gguf_header import GgufHeader
from .unsupported import UnsupportedArchitecture

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

_FACTORS = "rope_freqs.weight"
_OFF = 1e29
"""Factors from which on there is no rotation: llama.cpp's converter writes 1e30."""

_BIASES = {
    "attention_bias": "blk.0.attn_q.bias",
    "mlp_bias": "blk.0.ffn_up.bias",
    "bias": "blk.0.attn_qkv.bias",
}
"""Whether a model has biases, in the config, and a tensor that a file then has (Granite, Falcon)."""

_BOUNDS = ("attn_logit_softcapping", "final_logit_softcapping")
"""Settings of a file that the config has by the same name (Gemma)."""

_LARGEST_GEMMA = {"gemma2": 46, "gemma3_text": 62}
"""Layers of the models of 27B, whose queries are scaled by the hidden size for each head."""

_PLACES = {".bias": ("bias",), ".attn_q_norm.weight": ("q_norm", "q_layernorm", "query_layernorm")}
"""Endings of a file's names, and parts of transformers' names for them; StableLM 2 12B has norms of heads."""

_ENDS = ("eos", "eot", "eom")
"""Ends of a text, of a turn and of a message: llama.cpp stops at each, and at tokens by their names."""

_NAMED_ENDS = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>"}
    | {"<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"}
    | {"<end_of_utterance>", "<｜end▁of▁sentence｜>", "<|tool_response>", "[e~["}
)

_MESSAGES_GO_ON = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
"""Of models with both, ``<|end|>`` ends a message and not the turn (gpt-oss, Solar)."""

_LONG_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")


def complete_config(config: "PretrainedConfig", header: GgufHeader, path: str | PathLike[str]) -> None:
    """
    Set in *config*, which transformers made of the file *path* with this *header*, what it left out.

    Raises:
        UnsupportedArchitecture: The file has a setting that has no place in the config.
    """
    name, tensors, types = _name(path), header.types, _types(config)
    for tensor in _LONG_FACTORS:
        if tensor in tensors and "longrope" not in types:
            raise UnsupportedArchitecture(
                name, f"{tensor} must be in the config that transformers reads: got RoPE {_listed(types)}"
            )
    for option, tensor in _BIASES.items():
        if tensor in tensors and getattr(config, option, None) is False:
            setattr(config, option, True)
    settings = _settings(header)
    _set_base(name, settings, config)
    _set_scaling(name, settings, config)
    _set_window(name, settings, config)
    for bound in _BOUNDS:
        if bound in settings and hasattr(config, bound):
            setattr(config, bound, settings[bound])
    _set_query_scale(config)
    # transformers before 5 has no such method.
    validate = getattr(config, "validate", None)
    if validate is not None:
        try:
            validate()
        except Exception as error:
            raise UnsupportedArchitecture(name, f"its settings must fit each other: {error}") from error


def complete_model(model: "PreTrainedModel", path: str | PathLike[str]) -> None:
    """
    Divide the RoPE frequencies of *model*, which transformers loaded from the file *path*, by its factors.

    Raises:
        UnsupportedArchitecture: They are not for one RoPE without scaling, or the file has weights that the
            model has no place for, which transformers passes over. The model is as it was.
    """
    name, tensors = _name(path), {tensor.name: tensor for tensor in _reader(path).tensors}
    names = [parameter for parameter, _ in model.named_parameters()]
    for ending, places in _PLACES.items():
        tensor = next((each for each in tensors if each.startswith("blk.") and each.endswith(ending)), None)
        if tensor is not None and not any(place in each for place in places for each in names):
            raise UnsupportedArchitecture(name, f"each of its weights must have a place in it: got {tensor}")
    if _FACTORS in tensors:
        factors = torch.tensor(tensors[_FACTORS].data, dtype=torch.float32).flatten()
        _divide_frequencies(name, model, factors)


def complete_generation_config(config: "GenerationConfig", header: GgufHeader) -> None:
    """Add all end tokens of the file with this *header* to those of *config*."""
    ends, own = _end_tokens(header.settings), config.eos_token_id
    ends |= set() if own is None else set(as_several(own))
    if ends:
        config.eos_token_id = sorted(ends)


def _end_tokens(settings: Mapping[str, Any]) -> set[int]:
    """The ids that *settings* give, and those of tokens that are ends by their names."""
    keys = (f"tokenizer.ggml.{kind}_token_id" for kind in _ENDS)
    named = {
        text: token
        for token, text in enumerate(settings.get("tokenizer.ggml.tokens", ()))
        if text in _NAMED_ENDS
    }
    if any(both <= set(named) for both in _MESSAGES_GO_ON):
        named.pop("<|end|>", None)
    return {settings[key] for key in keys if key in settings} | set(named.values())


def _reader(path: str | PathLike[str]) -> Any:
    import gguf

    return gguf.GGUFReader(str(path))


def _name(path: str | PathLike[str]) -> str:
    return f"the model in {path}"


def _settings(header: GgufHeader) -> dict[str, Any]:
    """Numbers and strings of the file's architecture, by name without its prefix."""
    prefix = f"{header.settings.get('general.architecture')}."
    return {
        key.removeprefix(prefix): value
        for key, value in header.settings.items()
        if key.startswith(prefix) and not isinstance(value, list | tuple)
    }


def _set_base(name: str, settings: Mapping[str, Any], config: "PretrainedConfig") -> None:
    base, bases = settings.get("rope.freq_base"), {rope.get("rope_theta") for rope in _ropes(config)}
    # The file has it in float32.
    if base is None or any(found is not None and math.isclose(base, found, rel_tol=1e-6) for found in bases):
        return
    if len(bases) > 1 or None in bases:
        raise _left_out(name, "rope.freq_base", base, _listed(bases))
    _change_rope(config, rope_theta=base)


def _set_scaling(name: str, settings: Mapping[str, Any], config: "PretrainedConfig") -> None:
    kind, factor = _scaling(settings)
    types = _types(config)
    if kind in {"none", *types}:
        return
    if kind != "linear" or types != {"default"}:
        raise _left_out(name, "rope.scaling.type", kind, _listed(types))
    _change_rope(config, rope_type=kind, factor=factor)


def _set_window(name: str, settings: Mapping[str, Any], config: Any) -> None:
    window, found = settings.get("attention.sliding_window"), getattr(config, "sliding_window", None)
    # 0 stands for no window, and one as long as the context shows all of it.
    if not window or window >= settings.get("context_length", math.inf) or window == found:
        return
    # Where layers differ, the window is not all that the config needs.
    if not hasattr(config, "sliding_window") or getattr(config, "layer_types", None) is not None:
        raise _left_out(name, "attention.sliding_window", window, str(found))
    config.sliding_window = window


def _set_query_scale(config: Any) -> None:
    """Set the scale that no setting has, as llama.cpp does (``src/models/gemma2.cpp``, ``gemma3.cpp``)."""
    layers = _LARGEST_GEMMA.get(config.model_type)
    if layers is not None:
        config.query_pre_attn_scalar = (
            config.hidden_size // config.num_attention_heads
            if config.num_hidden_layers == layers
            else config.head_dim
        )


def _scaling(settings: Mapping[str, Any]) -> tuple[str, float]:
    """The type of RoPE scaling, and its factor; one without a type is linear, 0 is no factor: llama.cpp's."""
    kind = str(settings.get("rope.scaling.type", "linear"))
    factor = settings.get("rope.scaling.factor", settings.get("rope.scale_linear", 0))
    return "none" if kind == "linear" and factor in (0, 1) else kind, factor


def _types(config: "PretrainedConfig") -> set[str]:
    return {rope.get("rope_type", "default") for rope in _ropes(config)}


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


def _change_rope(config: Any, **changes: Any) -> None:
    """Change the RoPE parameters of all layers, or of those that attend to the whole text."""
    parameters = getattr(config, "rope_parameters", None)
    if parameters:
        config.rope_parameters = (
            {**parameters, "full_attention": {**parameters["full_attention"], **changes}}
            if "full_attention" in parameters
            else {**parameters, **changes}
        )
        return
    # transformers before 5 has a base and a scaling.
    if "rope_theta" in changes:
        config.rope_theta = changes.pop("rope_theta")
    if changes:
        config.rope_scaling = {**(config.rope_scaling or {}), **changes}


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
