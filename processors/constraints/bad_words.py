"""Forbidden words."""

import math
from typing import ClassVar

import attrs
from attrs import validators
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_token_ids, as_token_sequences
from ..penalties.sequence_bias import SequenceBias


@attrs.frozen(eq=False)
class BadWords(Composable):
    """
    Forbid the last token of a word if its other tokens directly precede.

    A word is a sequence of token ids; a word of one token is forbidden everywhere. A word that is a
    single token of *eos* is ignored, as in Hugging Face. No-op when empty. A hard constraint: it can
    leave a row without a token.

    A word usually has several tokenizations, for example with and without a leading space: each
    must be given.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    words: tuple[tuple[int, ...], ...] = attrs.field(converter=as_token_sequences)
    """Token sequences; a single id is a sequence of one."""

    eos: tuple[int, ...] = attrs.field(default=(), converter=as_token_ids)
    """End-of-sequence token ids, ascending, never forbidden alone. May be given as a single id."""

    include_prompt: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Whether preceding tokens may be the prompt's, as in Hugging Face; not in vLLM."""

    _bias: SequenceBias = attrs.field(init=False, repr=False)

    @_bias.default
    def _make_bias(self) -> SequenceBias:
        ends = [(token,) for token in self.eos]
        words = (word for word in self.words if word not in ends)
        return SequenceBias(dict.fromkeys(words, -math.inf), self.include_prompt)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Forbid words in ``[batch, width, vocab]`` logits, which are not modified."""
        return self._bias(logits, history)
