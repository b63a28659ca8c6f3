"""Decoder over any callable."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from ...decoding.protocols import DecoderShape
from .cache_record import Ints
from .capabilities import Capabilities, Prefill, Window
from .wrapped_decoder import WrappedDecoder

Function = Callable[[Tensor, Tensor], Tensor]
"""Ids and positions ``[batch, width]`` to logits."""

PrefillFunction = Callable[[Tensor, Tensor], Tensor]
"""Ids ``[batch, width]`` and the number of tokens of each row ``[batch]``, to logits ``[batch, vocab]``."""

_INTEGERS = (torch.int32, torch.int64)


class CallableDecoder(WrappedDecoder):
    """
    A decoder over a callable that keeps a KV cache, such as a traced module.

    The callable takes ids and positions and returns logits. It writes its columns at their positions
    and attends to the positions before them. It is never given padding. Positions are consecutive in
    each row.
    """

    def __init__(
        self,
        function: Function,
        shape: DecoderShape,
        *,
        prefill: PrefillFunction | None = None,
        per_row_positions: bool = True,
        dtype: torch.dtype = torch.int64,
        reset: Callable[[], object] | None = None,
    ) -> None:
        """
        Wrap *function*.

        Args:
            function: ``(ids, positions) -> logits``. Ids ``[batch, width]``, *width* one of
                ``shape.widths``; positions of the same shape. Logits ``[batch, width, vocab]``,
                or ``[batch, 1, vocab]`` of the last column when *width* exceeds
                ``shape.scored_width``.

            shape: The shape that it was compiled for. One of its widths is 1.

            prefill: ``(ids, lengths) -> logits [batch, vocab]``, of the last token of each row: a
                program that encodes prompts from position 0 on without reading the cache, and
                may overwrite all rows up to its width, the widest of ``shape.widths``. Rows are
                right-padded. *function* is then not called with that width. None: prompts go
                through *function*.

            per_row_positions: Whether rows may be at different positions in one call. If not,
                *function* is given positions ``[width]``, and rows at different ones take a call each.

            dtype: Dtype of ids and positions: int32 or int64.

            reset: Called by :meth:`reset`.

        Raises:
            ValueError: *shape* has no width of 1, or no width remains for *function*.

            TypeError: *function* or *prefill* is not callable, or *dtype* not int32 or int64.
        """
        for name, value in {"function": function, "prefill": prefill, "reset": reset}.items():
            if not callable(value) and (name == "function" or value is not None):
                raise TypeError(f"'{name}' must be callable: got {value!r}")
        if dtype not in _INTEGERS:
            raise TypeError(f"'dtype' must be torch.int32 or torch.int64: got {dtype}")
        self._function, self._encode, self._dtype, self._on_reset = function, prefill, dtype, reset
        widths = shape.widths if prefill is None else shape.widths[:-1]
        if 1 not in widths or shape.scored_width not in widths:
            raise ValueError(
                f"'shape' must have a width of 1 that 'function' takes, and score no wider ones: got {shape}"
            )
        windows = [Window(w, scores="every" if w <= shape.scored_width else "last") for w in widths]
        super().__init__(
            Capabilities(
                shape.batch_size,
                shape.max_length,
                shape.vocab_size,
                windows,
                None if prefill is None else Prefill(shape.widths[-1], one_row=shape.batch_size == 1),
                per_row_positions,
            )
        )

    def reset(self) -> None:
        """Treat the cache as empty, and call *reset* of the constructor."""
        super().reset()
        if self._on_reset is not None:
            self._on_reset()

    def _call_window(self, window: Window, rows: Sequence[int], ids: Tensor, positions: Tensor) -> Tensor:
        if not self.capabilities.per_row_positions:
            positions = positions[0]
        return self._function(ids.to(self._dtype), positions.to(self._dtype))

    def _call_prefill(self, prefill: Prefill, rows: Sequence[int], tokens: Sequence[Ints]) -> Tensor:
        ids = torch.zeros(len(tokens), prefill.columns, dtype=self._dtype)
        for row, own in enumerate(tokens):
            ids[row, : len(own)] = torch.from_numpy(own)
        lengths = torch.tensor([len(own) for own in tokens], dtype=self._dtype)
        return cast(PrefillFunction, self._encode)(ids, lengths)
