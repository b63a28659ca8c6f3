"""What transformers' ``generate`` holds in place of a model's KV cache."""

import torch
from torch import Tensor


class TokenCache:
    """
    The columns that a :class:`~.transformers_model.TransformersModel` has been given, padding included.

    Keys and values are in the decoder, which finds them by comparing tokens
    (:class:`~..cache.slots.Slots`). So reordering beams and cropping rejected candidates change this
    record alone. It may be kept, and given to a later call.
    """

    is_compileable = False
    is_croppable = True
    is_linear = (False,)
    """For one layer: whether it keeps a state in place of columns."""

    def __init__(self) -> None:
        self.ids = torch.empty(0, 0, dtype=torch.int64)
        """The columns, ``[rows, columns]`` int64; without rows before the first."""

    def __repr__(self) -> str:
        """Its size."""
        rows, columns = self.ids.shape
        return f"<{type(self).__name__}: {rows} rows of {columns} columns>"

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of columns."""
        return self.ids.shape[1]

    def with_columns(self, ids: Tensor) -> Tensor:
        """
        The columns, and *ids* ``[rows, new columns]`` after them; nothing is changed.

        Raises:
            ValueError: Another number of rows.
        """
        if not self.ids.shape[1]:
            return ids
        if len(ids) != len(self.ids):
            raise ValueError(f"'input_ids' must have the {len(self.ids)} rows of the cache: got {len(ids)}")
        return torch.cat([self.ids, ids], dim=1)

    def crop(self, tokens_to_remove: int) -> None:
        """
        Forget the last ``-tokens_to_remove`` columns.

        Raises:
            ValueError: A positive number.
        """
        if tokens_to_remove > 0:
            raise ValueError(f"'tokens_to_remove' must be <= 0: got {tokens_to_remove}")
        self.ids = self.ids[:, : max(self.ids.shape[1] + tokens_to_remove, 0)]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row *b* go on from row ``beam_idx[b]``."""
        self.ids = self.ids[beam_idx.to(self.ids.device).long()]

    def activate_past_recording(self) -> None:
        """Nothing to do: every column is kept."""
