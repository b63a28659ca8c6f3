"""Decoder over a model compiled with transformers-neuronx."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .cache_record import Ints
from .capabilities import Capabilities, Prefill, Window
from .settings import check_window, number, setting
from .wrapped_decoder import WrappedDecoder


class TransformersNeuronxDecoder(WrappedDecoder):
    """
    A decoder over a ``*ForSampling`` model of transformers-neuronx.

    The layout of its cache is read from its ``neuron_config``. With ``continuous_batching``, each row
    has its own position, and prompts are encoded row by row. With 2-D ``cache_ids``
    (``padding_side="right"``), each row has its own position, and prompts are encoded together.
    Otherwise all rows of a call are at one position: rows at different ones, as after ragged prompts,
    take a call each. The library's alignment of ragged rows, left padding with ``start_ids``, is not
    used: rows that accept drafts of different lengths would not stay aligned.
    """

    def __init__(
        self, model: Any, *, batch_size: int | None = None, speculation_length: int | None = None
    ) -> None:
        """
        Wrap a model on which ``to_neuron()`` has been called.

        Args:
            model: Called as ``model(input_ids, cache_ids, start_ids)``, and to verify drafts as
                ``model.speculative_forward(input_ids, cache_ids, start_ids, speculation_length)``.

            batch_size: Rows of a call, one of those it was compiled for. None: the largest.

            speculation_length: Columns of a verification, one of those that
                ``enable_speculative_decoder`` was called with. None: the largest, if any.

        Raises:
            ValueError: It was compiled with settings that do not fit a decoder, or not for these sizes.
        """
        config = getattr(model, "neuron_config", None)
        if setting(config, "on_device_generation") is not None:
            raise ValueError(
                "'on_device_generation' must be None: got a model that returns tokens. Compile it without: "
                "sampling uses its logits"
            )
        shared = setting(config, "continuous_batching")
        self._by_row = shared is not None
        self._two_dimensional = self._by_row or bool(setting(config, "use_2d_cache_ids", False))
        self._batch = _batch_size(model, shared, batch_size)
        max_length = _positions(model)
        check_window(model.config, max_length)
        self._buckets = sorted(size for size in setting(model, "context_buckets", ()) if size <= max_length)
        columns = _speculation_length(model, self._batch, self._by_row, speculation_length)
        self._model = model
        prefill = None
        if self._buckets and self._buckets[-1] > 1:
            prefill = Prefill(
                self._buckets[-1],
                one_row=self._by_row or self._batch == 1,
                # The library sends a single token through token generation, even at position 0.
                least=2,
                ragged=self._two_dimensional or self._batch == 1,
            )
        super().__init__(
            Capabilities(
                self._batch,
                max_length,
                number(model.config, "vocab_size"),
                [Window(1), *([Window(columns)] if columns > 1 else [])],
                prefill,
                per_row_positions=self._two_dimensional,
            )
        )

    def reset(self) -> None:
        """Treat the cache as empty, and reset the model."""
        super().reset()
        self._model.reset()

    def advise_width(self, columns: int) -> str:
        """Advice on how to have *columns* columns scored, as a sentence."""
        if self._by_row:
            return "Compile the model without continuous batching, under which it verifies nothing"
        return f"Call enable_speculative_decoder({columns}) before to_neuron()"

    def _call_window(self, window: Window, rows: Sequence[int], ids: Tensor, positions: Tensor) -> Tensor:
        # Under continuous batching the library scatters ids and cache ids into tensors of one dtype.
        ids, cache_ids = ids.int(), (positions if self._two_dimensional else positions[0]).int()
        if window.columns == 1:
            logits: Tensor = self._model(ids, cache_ids, self._start_ids(rows))
            return logits[:, None]
        scored: Tensor = self._model.speculative_forward(
            ids, cache_ids, self._start_ids(rows), speculation_length=window.columns
        )
        # The library returns [columns, vocab, batch].
        return scored.permute(2, 0, 1)

    def _call_prefill(self, prefill: Prefill, rows: Sequence[int], tokens: Sequence[Ints]) -> Tensor:
        columns, cache_ids = max(map(len, tokens)), None
        if self._two_dimensional:
            # The library pads ids to its bucket, but not cache_ids.
            columns = next(size for size in self._buckets if size >= columns)
            cache_ids = torch.zeros(len(tokens), columns, dtype=torch.int32)
        ids = torch.zeros(len(tokens), columns, dtype=torch.int32)
        for row, own in enumerate(tokens):
            ids[row, : len(own)] = torch.from_numpy(own)
            if cache_ids is not None:
                # The column of the highest cache id is scored.
                cache_ids[row, : len(own)] = torch.arange(len(own), dtype=torch.int32)
        logits: Tensor = self._model(ids, cache_ids, self._start_ids(rows))
        return logits

    def _start_ids(self, rows: Sequence[int]) -> Tensor | None:
        """
        Indices of the cache rows, where the model takes them.

        With 2-D ``cache_ids`` a verification writes where they say; left out, all rows write to row 0.
        """
        return torch.tensor(list(rows), dtype=torch.int32) if self._two_dimensional else None


def _batch_size(model: Any, shared: Any, batch_size: int | None) -> int:
    if shared is not None:
        sizes = [number(shared, "batch_size_for_shared_caches")]
    else:
        sizes = sorted(setting(model, "batch_sizes", ())) or [number(model.config, "batch_size")]
    if batch_size is None:
        return int(sizes[-1])
    if batch_size not in sizes:
        raise ValueError(f"'batch_size' must be one of {sizes}, which the model has: got {batch_size!r}")
    return batch_size


def _positions(model: Any) -> int:
    buckets = setting(model, "token_buckets", ())
    return max(buckets) if buckets else number(model.config, "n_positions")


def _speculation_length(model: Any, batch: int, by_row: bool, wanted: int | None) -> int:
    """Columns of a verification; 1 for none."""
    if by_row:
        if wanted is not None:
            raise ValueError(
                f"'speculation_length' must be None under continuous batching: got {wanted} (the library "
                "pads a verification to a context bucket there, for which it has no program)"
            )
        return 1
    programs = setting(model, "decoder_lm_head_for_speculation", {})
    # Keyed by columns; in later versions by columns and rows.
    known = sorted(
        {
            key if isinstance(key, int) else key[0]
            for key in programs
            if isinstance(key, int) or key[1] == batch
        }
    )
    if wanted is None:
        return int(known[-1]) if known else 1
    if wanted not in known:
        raise ValueError(f"'speculation_length' must be one of {known}, which are compiled: got {wanted!r}")
    return wanted
