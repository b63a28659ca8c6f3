"""DRY: a penalty on tokens that extend a repetition."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.growing_penalty import tabulated_penalties
from ..numerics.token_occurrences import largest_per_token, match_lengths, seen_slots, sequence_ends
from ..parameter import (
    a_bool,
    a_window,
    as_integers,
    as_reals,
    as_token_sequences,
    as_window,
    integer,
    is_scalar,
    one_integer,
    per_row,
    real,
)

LONGEST = 2**20
"""The longest match that can be told apart."""


@attrs.frozen(eq=False)
class DRY(Composable):
    """
    Subtract a penalty that grows with the length of the repetition a token would extend.

    If the last *length* tokens occurred before, the token that followed them there is penalised by
    multiplier · base^(length - allowed_length). The longest match of each token counts; matches
    shorter than *allowed_length* cost nothing. Matches may overlap with what they repeat. The
    multiplier is typically 0.8; no-op at 0, and where *allowed_length* exceeds *max_match*.

    A match does not cross a breaker, and a breaker of one token is never penalised. A penalty is
    at most half the largest number of the logits' dtype, so no token is forbidden. Matches are
    compared up to *max_match* tokens (in llama.cpp to their end); at the usual base the penalty
    exceeds all logits long before.

    p-e-w, 2024, `DRY: A modern repetition penalty that reliably prevents looping
    <https://github.com/oobabooga/text-generation-webui/pull/5677>`_.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    multiplier: float | Tensor = attrs.field(
        converter=as_reals, validator=real(">= 0 (0 is off)", lambda multiplier: multiplier >= 0)
    )
    """The penalty of a match of *allowed_length*. One for all rows, or ``[batch]``."""

    base: float | Tensor = attrs.field(
        default=1.75, converter=as_reals, validator=real(">= 1", lambda base: base >= 1)
    )
    """Growth of the penalty per further token of a match. One for all rows, or ``[batch]``."""

    allowed_length: int | Tensor = attrs.field(
        default=2, converter=as_integers, validator=integer(">= 1", lambda length: length >= 1)
    )
    """Length of the shortest penalised match. One for all rows, or ``[batch]``."""

    breakers: tuple[tuple[int, ...], ...] = attrs.field(default=(), converter=as_token_sequences)
    """Token ids, or sequences of them, that end a match: line breaks, quotation marks, ..."""

    window: int | Tensor | None = attrs.field(default=None, converter=as_window, validator=a_window)
    """Number of last tokens that count: None for all, one number for all rows, or ``[batch]``."""

    include_prompt: bool = attrs.field(default=True, validator=a_bool)
    """Whether the prompt's tokens count, as they do in llama.cpp."""

    max_match: int = attrs.field(
        default=50,
        validator=one_integer(f"1 to {LONGEST}", lambda length: 1 <= length <= LONGEST),
    )
    """Longest match that is told apart, 1 to 2^20; longer ones cost the same. Time grows with it."""

    _penalties: Tensor = attrs.field(init=False, repr=False)
    _breaking_ids: Tensor = attrs.field(init=False, repr=False)

    @_breaking_ids.default
    def _make_breaking_ids(self) -> Tensor:
        return torch.tensor([b[0] for b in self.breakers if len(b) == 1], dtype=torch.int64)

    def __attrs_post_init__(self) -> None:
        table = tabulated_penalties(self.multiplier, self.base, self.allowed_length, self.max_match)
        object.__setattr__(self, "_penalties", table)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Penalise ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.multiplier, 0.0) or is_scalar(self.window, 0):
            return logits
        per_row("multiplier", self.multiplier, logits)
        per_row("base", self.base, logits)
        per_row("allowed_length", self.allowed_length, logits)
        slots = seen_slots(history, logits, self.include_prompt, self.window)
        breaking = torch.isin(history.ids, self._breaking_ids.to(logits.device))
        broken = breaking
        for breaker in self.breakers:
            if len(breaker) > 1:
                broken = broken | sequence_ends(breaker, history.ids)
        lengths = match_lengths(history, slots & ~broken, self.max_match)
        # Half the largest number leaves room for the logit: in float16, 20 + the largest is infinite.
        bound = torch.finfo(logits.dtype).max / 2
        table = self._penalties.clamp(max=bound).to(logits)[:, None].expand(*logits.shape[:2], -1)
        penalties = table.gather(-1, lengths)
        return logits - largest_per_token(logits, history, slots & ~breaking, penalties)
