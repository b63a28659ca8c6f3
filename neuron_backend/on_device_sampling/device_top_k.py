"""Device variant of TopK. It follows the host's definition, ties included."""

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...processors import TopK
from ...processors.parameter import is_scalar, per_row
from .device_ranking import descending, reaching
from .device_refusal import check_size


@attrs.frozen(eq=False)
class DeviceTopK:
    """:class:`~decodekit.processors.TopK` in two steps: the top-k of pieces, then of those."""

    host: TopK

    largest: int
    """Largest k of all rows."""

    @classmethod
    def of(cls, host: TopK, survivors: int | None) -> "DeviceTopK | None":
        """See :class:`~.device_stages.DeviceStage`."""
        if is_scalar(host.k, 0):
            return None
        largest = int(torch.as_tensor(host.k).max())
        check_size(host, "k", largest)
        return cls(host, max(largest, 1))

    def survivors_after(self, before: int | None) -> int | None:
        """See :class:`~.device_stages.DeviceStage`."""
        # A row with k = 0 is off.
        if bool((torch.as_tensor(self.host.k) == 0).any()):
            return before
        return self.largest if before is None else min(self.largest, before)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all but the *k* largest of ``[batch, width, vocab]`` logits, which are not modified."""
        k = per_row("k", self.host.k, logits)
        values = descending(logits, self.largest)
        if isinstance(k, Tensor):
            last = k.clamp(1, values.shape[-1]) - 1
            kth = values.gather(-1, last.expand(-1, logits.shape[1], 1)).masked_fill(k == 0, -torch.inf)
        else:
            kth = values[..., -1:]
        if self.host.ties == "keep":
            return logits.masked_fill(logits < kth, -torch.inf)
        room = k - (logits > kth).float().sum(dim=-1, keepdim=True)
        # For rows without top-k (k = 0), the k-th logit is -inf, which is masked already.
        return logits.masked_fill(~reaching(logits, kth, room, "first"), -torch.inf)
