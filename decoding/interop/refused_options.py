"""What ``generate`` takes and a decoder cannot do, with the way to get there."""

from collections.abc import Mapping
from typing import Any

from .cache_name import CACHE

MODEL_ARGUMENTS = ("input_ids", "attention_mask", "position_ids", CACHE, "logits_to_keep", "use_cache")
"""Arguments of a forward."""

_IDS = "a decoder is fed token ids; soft prompts and other embeddings need the stock model"
_TEXT = "a decoder reads text alone: give what an encoder says of it as tokens, or use the stock model"
_LOGITS = "a decoder returns logits alone; use the stock model"

_ARGUMENTS = {
    "inputs_embeds": _IDS,
    "prompt_embeds": _IDS,
    "encoder_outputs": _TEXT,
    "decoder_input_ids": _TEXT,
    "pixel_values": _TEXT,
    "input_features": _TEXT,
    "token_type_ids": "tokenizer(..., return_token_type_ids=False) leaves them out",
    "labels": "a decoder does not learn",
    "output_attentions": _LOGITS,
    "output_hidden_states": _LOGITS,
}
"""Model arguments, with the way to get there."""

_FIELDS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "assistant_early_exit": (
        (None,),
        "give assistant_model=TransformersModel(decoder.early_exit(layers)) in its place",
    ),
    "use_mtp": ((None, False), "the heads that predict several tokens are not compiled"),
    "speculation_type": ((None,), "it reads the model's embeddings; give an assistant_model"),
}
"""Fields of a generation config, with their off-values and the way to get there."""


def refuse_arguments(given: Mapping[str, Any]) -> None:
    """
    Refuse arguments that are no fields of a generation config and that a forward does not take.

    Raises:
        ValueError: There is one that is not None.
    """
    for name, value in given.items():
        if value is not None and name not in MODEL_ARGUMENTS:
            hint = f"; {_ARGUMENTS[name]}" if name in _ARGUMENTS else ""
            raise ValueError(
                f"generate() with a decoder takes {', '.join(MODEL_ARGUMENTS)} and fields of a "
                f"generation config: got '{name}'{hint}"
            )


def refuse_fields(generation_config: Any) -> None:
    """
    Refuse fields of a generation config that need more than logits.

    Raises:
        ValueError: One of them is set.
    """
    fields = vars(generation_config)
    for name, (off, way) in _FIELDS.items():
        if (value := fields.get(name)) not in off:
            raise ValueError(f"'{name}' must be {off[-1]!r} with a decoder: got {value!r}; {way}")
    if fields.get("cache_implementation") == "quantized":
        raise ValueError(
            "'cache_implementation' must not be 'quantized': the decoder keeps its own cache, of the dtype "
            "that it was compiled with"
        )
