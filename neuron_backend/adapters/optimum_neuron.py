"""Decoder over a model exported with optimum-neuron."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .cache_record import Ints
from .capabilities import Capabilities, Prefill, Window
from .prompt_layout import lay_out_prompts
from .settings import check_columns, check_settings, check_window, number, setting, text_config
from .wrapped_decoder import WrappedDecoder

_RULES = {
    "padding_side": (("right",), "positions are counted from the left"),
    "embedding_model": ((False,), "it scores nothing"),
}


class OptimumNeuronDecoder(WrappedDecoder):
    """
    A decoder over a ``NeuronModelForCausalLM`` of optimum-neuron.

    The library treats a call of several columns in which any row has position 0 as prompts: all
    of its rows go through context encoding, which scores each row's last token and overwrites the
    rows from position 0 on. A call as wide as ``speculation_length`` scores every column; any
    other scores one token. If it was exported with ``prefill_chunk_size``, prompts go through
    ``prefill_chunk``, whose scores are not used.

    Export it from an ``NxDNeuronConfig`` with ``on_device_sampling=False`` (the default of
    ``get_neuron_config`` is True), or with ``output_logits=True``, which returns logits beside the tokens.
    """

    def __init__(self, model: Any) -> None:
        """
        Wrap an exported model.

        Args:
            model: Called with ``input_ids``, ``position_ids``, ``seq_ids`` and
                ``sampling_params``. Its capabilities are read from its ``neuron_config``.

        Raises:
            ValueError: A setting that it was exported with does not fit a decoder; the message names it.
        """
        config = model.neuron_config
        check_settings(config, _RULES)
        if setting(config, "on_device_sampling", False) and not setting(config, "output_logits", False):
            raise ValueError(
                "'on_device_sampling' must be False, or 'output_logits' True: got a model that returns "
                "tokens. Export it again with one of the two: sampling uses its logits"
            )
        batch, max_length = number(config, "batch_size"), number(config, "sequence_length")
        check_settings(config, {"max_batch_size": ((batch,), "the cache must have as many rows as a call")})
        text = text_config(model.config)
        check_window(text, max_length)
        one_row = bool(setting(config, "continuous_batching", False)) or batch == 1
        windows, prefill = [Window(1)], None
        context = min(setting(config, "max_context_length", max_length), max_length)
        if (columns := setting(config, "speculation_length", 0)) > 1:
            check_columns(columns, [context])
            windows.append(Window(columns, first=1))
        if (chunk := setting(config, "prefill_chunk_size", 0)) > 1:
            windows.append(Window(chunk, scores="none", one_row=one_row and batch > 1))
        elif context > 1:
            # The library sends a single token through token generation, even at position 0.
            prefill = Prefill(context, one_row=one_row, least=2)
        self._model = model
        self._masks = "attention_mask" in inspect.signature(model.forward).parameters
        super().__init__(Capabilities(batch, max_length, number(text, "vocab_size"), windows, prefill))

    def reset(self) -> None:
        """Treat the cache as empty, and reset the model."""
        super().reset()
        self._model.reset()

    def advise_width(self, columns: int) -> str:
        """Advice on how to have *columns* columns scored, as a sentence."""
        return f"Export the model with speculation_length={columns}"

    def _call_window(self, window: Window, rows: Sequence[int], ids: Tensor, positions: Tensor) -> Tensor:
        if window.scores == "none":
            self._model.prefill_chunk(
                input_ids=ids,
                position_ids=positions,
                seq_ids=torch.tensor(list(rows)),
                sampling_params=torch.ones(len(ids), 3, dtype=torch.float32),
            )
            # The window scores none: what the chunk returns is not used.
            return torch.empty(len(ids), 1, 0, dtype=torch.float32)
        before = positions[:, :1]
        mask = (torch.arange(max(1, int(before.max()))) < before).long()
        return self._logits(ids, mask, positions, rows)

    def _call_prefill(self, prefill: Prefill, rows: Sequence[int], tokens: Sequence[Ints]) -> Tensor:
        ids, positions, mask = lay_out_prompts(tokens, prefill.columns)
        return self._logits(ids, mask, positions, rows)[:, -1]

    def _logits(self, ids: Tensor, mask: Tensor, positions: Tensor, rows: Sequence[int]) -> Tensor:
        # Versions that take a mask would otherwise make a wrong one for several columns.
        masks = {"attention_mask": mask} if self._masks else {}
        output = self._model.forward(
            input_ids=ids,
            position_ids=positions,
            seq_ids=torch.tensor(list(rows)),
            sampling_params=torch.ones(len(ids), 3, dtype=torch.float32),
            **masks,
        )
        if isinstance(output, (list, tuple)):
            # With output_logits: tokens or logits, and logits gathered from every core, of which the first
            # are for this vocabulary.
            output = output[1]
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits
