"""Logit bias."""

import math
import numbers
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import FLOAT32, as_token_ids, index_of


def _as_biases(biases: Mapping[int, float]) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        raise TypeError(f"'biases' must map token ids to numbers: got {biases!r}, a {type(biases).__name__}")
    for bias in biases.values():
        check_bias(bias)
    return {token: float(biases[token]) for token in as_token_ids(biases)}


def check_bias(bias: Any) -> None:
    """Raise unless *bias* is a finite number or ``-inf``."""
    if isinstance(bias, bool) or not isinstance(bias, numbers.Real):
        raise TypeError(f"a bias must be a number: got {bias!r}, a {type(bias).__name__}")
    if not (bias == -math.inf or abs(float(bias)) <= FLOAT32.max):
        raise ValueError(f"a bias must be finite in float32, or -inf to forbid the token: got {bias!r}")


@attrs.frozen(eq=False)
class LogitBias(Composable):
    """
    Add a bias to the logits of given tokens.

    Above 0 encourages, below 0 discourages, ``-inf`` forbids; no-op when empty. Biases are float32.
    With ``-inf`` a hard constraint: it can leave a row without a token.

    OpenAI, `API reference <https://platform.openai.com/docs/api-reference/chat/create>`_,
    ``logit_bias``.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    biases: Mapping[int, float] = attrs.field(converter=_as_biases)
    """Token id to bias."""

    _ids: tuple[int, ...] = attrs.field(init=False, repr=False)
    _index: Tensor = attrs.field(init=False, repr=False)
    _added: Tensor = attrs.field(init=False, repr=False)

    @_ids.default
    def _make_ids(self) -> tuple[int, ...]:
        return tuple(self.biases)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self._ids, dtype=torch.int64)

    @_added.default
    def _make_added(self) -> Tensor:
        return torch.tensor(tuple(self.biases.values()), dtype=torch.float32)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Bias ``[batch, width, vocab]`` logits, which are not modified."""
        if not self._ids:
            return logits
        index = index_of(self._ids, logits, self._index)
        return logits.scatter(-1, index, logits.gather(-1, index) + self._added.to(logits))
