"""Forbidding chosen words."""

import math
from typing import ClassVar

import attrs
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_token_ids, as_token_sequences
from ..penalties.sequence_bias import SequenceBias


@attrs.frozen(eq=False)
class BadWords(Composable):
    """
    Forbid the last token of a word when its others have just come.

    A word is a sequence of token ids; one of a single token is forbidden everywhere. The prompt
    counts as what has just come. A word that is one of *eos* alone is left out, as in Hugging
    Face. No-op when empty. A hard constraint: it can leave a row without a token.

    A tokenizer has several ways to write a word, with and without a space before it for one:
    each of them has to be given.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    words: tuple[tuple[int, ...], ...] = attrs.field(converter=as_token_sequences)
    """Token sequences; a single id is a sequence of one."""

    eos: tuple[int, ...] = attrs.field(default=(), converter=as_token_ids)
    """The tokens that end a sequence, ascending: these stay. One id may be given alone."""

    _bias: SequenceBias = attrs.field(init=False, repr=False)

    @_bias.default
    def _make_bias(self) -> SequenceBias:
        ends = [(token,) for token in self.eos]
        return SequenceBias({word: -math.inf for word in self.words if word not in ends})

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Forbid words in ``[batch, width, vocab]`` logits, which are not modified."""
        return self._bias(logits, history)
