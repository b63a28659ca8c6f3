"""Decoder over a model compiled with NxD Inference."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .cache_record import Ints
from .capabilities import Capabilities, Prefill, Window
from .prompt_layout import lay_out_prompts
from .settings import check_columns, check_settings, check_window, largest, number, setting, text_config
from .wrapped_decoder import WrappedDecoder

_FUSED = (
    "its forward does not return the logits after its input tokens; vLLM Neuron compiles every model with "
    "speculation so: compile it with NxD Inference, with speculation_length=k + 1 and no fused speculation"
)
_BLOCKS = (
    "its cache is addressed by blocks, not by position; vLLM Neuron compiles models with prefix caching or "
    "chunked prefill so"
)

_RULES = {
    "padding_side": (("right",), "positions are counted from the left"),
    "async_mode": (
        (False,),
        "it returns the result of the previous step; decodekit's own async_mode is NativeTarget's",
    ),
    "enable_fused_speculation": ((False,), _FUSED),
    "enable_eagle_speculation": ((False,), f"EAGLE's draft head runs in the target's program; {_FUSED}"),
    "is_eagle_draft": (
        (False,),
        "a draft head needs the target's hidden states; pass a complete draft model",
    ),
    "is_medusa": (
        (False,),
        "its heads return draft tokens; compile it with speculation_length=k + 1 instead",
    ),
    "is_block_kv_layout": ((False,), _BLOCKS),
    "is_prefix_caching": ((False,), _BLOCKS),
    "is_chunked_prefill": ((False,), _BLOCKS),
    "flash_decoding_enabled": ((False,), "it writes garbage to the last position"),
}


class NxDInferenceDecoder(WrappedDecoder):
    """
    A decoder over ``NeuronBaseForCausalLM`` of neuronx-distributed-inference.

    The library treats a call in which any row has position 0 as prompts: all of its rows go
    through context encoding, which scores each row's last token and overwrites the rows from
    position 0 on. A call as wide as ``speculation_length`` scores every column. Compile it with
    ``is_continuous_batching=True`` and ``ctx_batch_size=1`` for prompts to join a running batch, with
    ``speculation_length=k + 1`` to verify k draft tokens, and without ``on_device_sampling_config``, or
    with it and ``output_logits=True``.

    A model with ``speculation_length`` has a program of k + 1 columns in place of that of one token (since
    SDK 2.22; before, it had both). Single tokens then go through the wider one.
    """

    def __init__(self, model: Any) -> None:
        """
        Wrap a compiled and loaded model.

        Args:
            model: Called with ``input_ids``, ``attention_mask``, ``position_ids``, ``seq_ids`` and
                ``sampling_params``; returns ``logits``. Its capabilities are read from its
                ``neuron_config``, and from whether it has a ``token_generation_model``.

        Raises:
            ValueError: A setting that it was compiled with does not fit a decoder; the message names it.
        """
        config = model.neuron_config
        check_settings(config, _RULES)
        _check_output(config)
        max_length = largest(config, "token_generation_buckets", number(config, "max_length", "seq_len"))
        batch = number(config, "tkg_batch_size", "batch_size")
        text = text_config(model.config)
        check_window(text, max_length)
        for name in ("max_batch_size", "kv_cache_batch_size"):
            check_settings(config, {name: ((batch,), "the cache must have as many rows as a call")})
        columns = setting(config, "speculation_length", 0)
        if columns > 0:
            check_settings(config, {"spec_batch_size": ((batch,), "all programs must take the same rows")})
        prompts = number(config, "ctx_batch_size", "batch_size")
        one_row = bool(setting(config, "is_continuous_batching", False)) or batch == 1
        if prompts != (1 if one_row else batch):
            raise ValueError(
                f"'ctx_batch_size' must be 1 under continuous batching and {batch} without: got {prompts}"
            )
        context = min(setting(config, "max_context_length", max_length), max_length)
        context = largest(config, "context_encoding_buckets", context)
        check_columns(columns, setting(config, "context_encoding_buckets", [context]))
        self._model = model
        super().__init__(
            Capabilities(
                batch,
                max_length,
                number(text, "vocab_size"),
                _windows(model, columns),
                Prefill(context, one_row=one_row),
            )
        )

    def reset(self) -> None:
        """Treat the cache as empty, and reset the model."""
        super().reset()
        self._model.reset()

    def advise_width(self, columns: int) -> str:
        """Advice on how to have *columns* columns scored, as a sentence."""
        return f"Compile the model with speculation_length={columns}"

    def _call_window(self, window: Window, rows: Sequence[int], ids: Tensor, positions: Tensor) -> Tensor:
        # Mask of the cache before the first column; the graph itself masks the columns. Its length selects
        # the bucket, so it is as short as possible.
        before = positions[:, :1]
        mask = (torch.arange(int(before.max())) < before).long()
        return self._logits(ids, mask, positions, rows)

    def _call_prefill(self, prefill: Prefill, rows: Sequence[int], tokens: Sequence[Ints]) -> Tensor:
        ids, positions, mask = lay_out_prompts(tokens, prefill.columns)
        return self._logits(ids, mask, positions, rows)[:, -1]

    def _logits(self, ids: Tensor, mask: Tensor, positions: Tensor, rows: Sequence[int]) -> Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            seq_ids=torch.tensor(list(rows)),
            # Every graph has the input, and the library's default has as many rows as the cache.
            sampling_params=torch.ones(len(ids), 3, dtype=torch.float32),
        )
        logits: Tensor = output.logits
        return logits


def _check_output(config: Any) -> None:
    """Refuse a model whose output has no logits."""
    samples = setting(config, "on_device_sampling_config") is not None
    returns_logits = bool(setting(config, "output_logits", False))
    if samples and not returns_logits:
        raise ValueError(
            "'on_device_sampling_config' must be None, or 'output_logits' True: got a model that returns "
            "tokens. Compile it again with one of the two: sampling uses its logits"
        )
    if returns_logits and not samples:
        raise ValueError(
            "'output_logits' must be False without 'on_device_sampling_config': got True (the library then "
            "returns a list in place of the logits). Compile it again without 'output_logits'"
        )


def _windows(model: Any, columns: int) -> list[Window]:
    """The programs that feed tokens behind a prompt, for a ``speculation_length`` of *columns*."""
    if columns <= 1:
        # With speculation_length=1 the library calls the program for speculation, to the same effect.
        return [Window(1, first=1)]
    verifying = Window(columns, first=1)
    if setting(model, "token_generation_model") is None:
        return [verifying]
    return [Window(1, first=1), verifying]
