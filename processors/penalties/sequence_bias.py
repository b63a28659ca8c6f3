"""Sequence bias: a logit bias on the last token of a sequence."""

import math
from collections.abc import Mapping
from typing import ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.token_occurrences import last_tokens
from ..parameter import FLOAT32, as_token_sequence, as_token_sequences, index_of
from .logit_bias import check_bias

Biases = Mapping[tuple[int, ...], float]


def _as_biases(biases: Mapping[int | tuple[int, ...], float]) -> Biases:
    if not isinstance(biases, Mapping):
        raise TypeError(
            f"'biases' must map token sequences to numbers: got {biases!r}, a {type(biases).__name__}"
        )
    for bias in biases.values():
        check_bias(bias)
    as_token_sequences(biases)
    return {as_token_sequence(sequence): float(bias) for sequence, bias in biases.items()}


@attrs.frozen(eq=False)
class SequenceBias(Composable):
    """
    Add a bias to the logit of a sequence's last token if its other tokens directly precede.

    Above 0 encourages, below 0 discourages, ``-inf`` forbids; a sequence of one token always applies,
    biases of several sequences on one token add up; no-op when empty. Biases are float32. With ``-inf``
    a hard constraint: it can leave a row without a token.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    biases: Biases = attrs.field(converter=_as_biases)
    """Token sequence, or a single id, to the bias of its last token."""

    include_prompt: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Whether preceding tokens may be the prompt's, as in Hugging Face; not in vLLM."""

    _last: tuple[int, ...] = attrs.field(init=False, repr=False)
    _index: Tensor = attrs.field(init=False, repr=False)
    _before: Tensor = attrs.field(init=False, repr=False)
    _place: Tensor = attrs.field(init=False, repr=False)
    _added: Tensor = attrs.field(init=False, repr=False)

    @biases.validator
    def _check_sum(self, attribute: "attrs.Attribute[Biases]", biases: Biases) -> None:
        # Biases on one token add up, and inf - inf is NaN.
        total = math.fsum(abs(bias) for bias in biases.values() if bias > -math.inf)
        if total > FLOAT32.max:
            raise ValueError(f"'biases' must add up to a number finite in float32: got {total:g}")

    @_last.default
    def _make_last(self) -> tuple[int, ...]:
        """The tokens that may be biased, ascending."""
        return tuple(sorted({sequence[-1] for sequence in self.biases}))

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self._last, dtype=torch.int64)

    @_before.default
    def _make_before(self) -> Tensor:
        """``[sequences, longest - 1]``: the preceding tokens, right-aligned, padded with -1."""
        longest = max((len(sequence) for sequence in self.biases), default=1)
        rows = [[-1] * (longest - len(sequence)) + list(sequence[:-1]) for sequence in self.biases]
        return torch.tensor(rows, dtype=torch.int64)

    @_place.default
    def _make_place(self) -> Tensor:
        """``[sequences]``: index into ``_last`` of each sequence's last token."""
        place = {token: number for number, token in enumerate(self._last)}
        return torch.tensor([place[sequence[-1]] for sequence in self.biases], dtype=torch.int64)

    @_added.default
    def _make_added(self) -> Tensor:
        return torch.tensor(tuple(self.biases.values()), dtype=torch.float32)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Bias ``[batch, width, vocab]`` logits, which are not modified."""
        if not self.biases:
            return logits
        index = index_of(self._last, logits, self._index)
        before = self._before.to(logits.device)
        last = last_tokens(history.ids, history, before.shape[-1], self.include_prompt)
        last = last[..., None, :]  # [batch, width, 1, n]
        came = ((last == before) | (before < 0)).all(dim=-1)  # [batch, width, sequences]
        biases = torch.where(came, self._added.to(logits), 0.0)
        total = torch.zeros(index.shape, dtype=logits.dtype, device=logits.device)
        total = total.scatter_add(-1, self._place.to(logits.device).expand(biases.shape), biases)
        return logits.scatter(-1, index, logits.gather(-1, index) + total)
