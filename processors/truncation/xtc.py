"""Excluding top choices."""

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
    With *probability*, drop all tokens of at least *threshold* but the least likely of them.

    Where several tokens would do, an unusual one is taken; where one alone would, nothing
    changes. Tokens tied with the least likely stay. If a token of *keep* would go, none does:
    one of several kept alone would win all that the others lose. No-op at probability 0.

    The coin belongs to the row's stream and to the position, so a draft and a target toss the
    same, and a row's text does not depend on its neighbours.

    Weidmann, 2024, `Exclude Top Choices
    <https://github.com/oobabooga/text-generation-webui/pull/6335>`_. mlx-lm differs: it spares
    the tokens to keep one by one, tosses one coin for a whole batch, and a token of exactly
    *threshold* does not count.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # makes its coin

    probability: float | Tensor = attrs.field(
        converter=as_reals, validator=real("in [0, 1]", lambda q: (q >= 0) & (q <= 1))
    )
    """Of acting, at each token anew. Typically 0.5. One for all rows, or ``[batch]``."""

    threshold: float | Tensor = attrs.field(
        # Two tokens cannot both be more likely than a half.
        converter=as_reals,
        validator=real("in (0, 0.5]", lambda θ: (θ > 0) & (θ <= 0.5)),
    )
    """How likely a top choice is at least. Typically 0.1. One for all rows, or ``[batch]``."""

    keep: tuple[int, ...] = attrs.field(default=(), converter=as_token_ids)
    """Tokens that are never dropped, ascending, such as the newline and the end of sequence."""

    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.keep, dtype=torch.int64)

    @property
    def local(self) -> bool:
        """Only with nothing to keep does it look at no token ids."""
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
        """``[batch, width, vocab]`` bool: the tokens of at least the threshold but the last."""
        _, weights, total = relative(logits)
        likely = weights >= (per_row("threshold", self.threshold, total) * total).to(logits.dtype)
        last = logits.masked_fill(~likely, torch.inf).amin(dim=-1, keepdim=True)
        return likely & (logits > last)

    def _acts(self, history: History) -> Tensor:
        """``[batch, width, 1]`` bool: the coin of each row and position."""
        # Noise is made on the host.
        position = history.length.cpu()[..., None]
        stream = history.random_stream.cpu()[:, None, None]
        probability = per_row(
            "probability", self.probability, torch.empty(position.shape, dtype=torch.float64)
        )
        acts = noise.coin(stream, position, noise.XTC, torch.zeros_like(position), probability)
        return acts.to(history.length.device)
