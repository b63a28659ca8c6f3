"""XTC: exclude top choices."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.sampling import noise
from ..chain import Composable
from ..numerics.likelihood import relative
from ..parameter import as_reals, as_token_ids, index_of, is_scalar, per_row, real


@attrs.frozen(eq=False)
class XTC(Composable):
    """
    With *probability*, drop all tokens of at least *threshold* except the least likely of them.

    If fewer than two tokens reach *threshold*, nothing changes. Tokens tied with the least likely
    one stay. If a token of *keep* would be dropped, none is: keeping it alone would give it the
    mass of the others. No-op at probability 0.

    The random draw depends on the row's random stream and the position only, so draft and target
    draw alike, and a row does not depend on its neighbours.

    Weidmann, 2024, `Exclude Top Choices
    <https://github.com/oobabooga/text-generation-webui/pull/6335>`_. mlx-lm differs: it keeps
    the special tokens one by one, draws once for a whole batch, and does not count a token at
    exactly *threshold*.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # draws noise on the host

    probability: float | Tensor = attrs.field(
        converter=as_reals, validator=real("in [0, 1]", lambda q: (q >= 0) & (q <= 1))
    )
    """Probability of acting, drawn for each token. Typically 0.5. One for all rows, or ``[batch]``."""

    threshold: float | Tensor = attrs.field(
        # Above 0.5 two tokens can never reach it.
        converter=as_reals,
        validator=real("in (0, 0.5]", lambda θ: (θ > 0) & (θ <= 0.5)),
    )
    """Smallest probability of a top choice. Typically 0.1. One for all rows, or ``[batch]``."""

    keep: tuple[int, ...] = attrs.field(default=(), converter=as_token_ids)
    """Token ids that are never dropped, ascending, such as newline and end of sequence."""

    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.keep, dtype=torch.int64)

    @property
    def local(self) -> bool:
        """True if *keep* is empty: otherwise token ids matter."""
        return not self.keep

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the top choices of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.probability, 0.0):
            return logits
        excluded = self._top_choices(logits) & self._acts(history)
        if self.keep:
            index = index_of(self.keep, logits, self._index)
            excluded = excluded & ~excluded.gather(-1, index).any(dim=-1, keepdim=True)
        return logits.masked_fill(excluded, -torch.inf)

    def _top_choices(self, logits: Tensor) -> Tensor:
        """``[batch, width, vocab]`` bool: all tokens that reach the threshold except the least likely."""
        _, weights, total = relative(logits)
        likely = weights >= (per_row("threshold", self.threshold, total) * total).to(logits.dtype)
        last = logits.masked_fill(~likely, torch.inf).amin(dim=-1, keepdim=True)
        return likely & (logits > last)

    def _acts(self, history: History) -> Tensor:
        """``[batch, width, 1]`` bool: whether to act, drawn per row and position."""
        # Noise is generated on the host.
        position = history.length.cpu()[..., None]
        stream = history.random_stream.cpu()[:, None, None]
        probability = per_row(
            "probability", self.probability, torch.empty(position.shape, dtype=torch.float64)
        )
        acts = noise.coin(stream, position, noise.XTC, torch.zeros_like(position), probability)
        return acts.to(history.length.device)
