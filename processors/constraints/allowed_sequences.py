"""Generated tokens that are one of several sequences."""

from collections.abc import Iterable
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_token_ids, as_token_sequences, at_least_one, check_ids
from .masking import keep_only_in


@attrs.define(eq=False)
class _Node:
    """A place in the trie of all sequences."""

    children: dict[int, "_Node"] = attrs.field(factory=dict)
    is_end: bool = False
    """Whether a sequence ends here."""

    allowed: Tensor | None = None
    """Cached ids of the tokens that may follow, ``[n]`` int64."""

    def follow(self, ids: Iterable[int]) -> "tuple[_Node, int | None]":
        """The last place on the way along *ids*, and the first token that leads nowhere; None if all do."""
        node = self
        for token in ids:
            child = node.children.get(token)
            if child is None:
                return node, token
            node = child
        return node, None


@attrs.frozen(eq=False)
class AllowedSequences(Composable):
    """
    Let the generated tokens be one of *sequences*, and the end of sequence after it.

    Where one sequence is a prefix of another, both the end and the continuation are allowed. Of a text
    this allows the given tokenization alone; :class:`AllowedTexts` allows them all. A hard constraint: it
    leaves no token after tokens that are no prefix of a sequence, which another processor may force;
    behind a rejected draft token that is harmless. No neutral value.

    Host only: follows the new tokens of each row and column through a trie.

    De Cao et al., 2021, `Autoregressive Entity Retrieval <https://arxiv.org/abs/2010.00904>`_, section 3.2.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # a trie on the host

    sequences: tuple[tuple[int, ...], ...] = attrs.field(
        converter=as_token_sequences, validator=at_least_one, repr=False
    )
    """Sequences of token ids; a single id is a sequence of one."""

    eos: tuple[int, ...] = attrs.field(converter=as_token_ids, validator=at_least_one)
    """End-of-sequence token ids, ascending. May be given as a single id."""

    _root: _Node = attrs.field(init=False, repr=False)
    _largest: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Build the trie."""
        root = _Node()
        for sequence in self.sequences:
            node = root
            for token in sequence:
                node = node.children.setdefault(token, _Node())
            node.is_end = True
        object.__setattr__(self, "_root", root)
        object.__setattr__(self, "_largest", max(self.eos + tuple(map(max, filter(None, self.sequences)))))

    def __reduce__(self) -> tuple[Any, ...]:
        # A long sequence is a deep trie.
        return AllowedSequences, (self.sequences, self.eos)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all other tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        batch, width, vocab = logits.shape
        check_ids(self._largest, vocab)
        prompt = history.prompt.tolist()
        return keep_only_in(
            logits,
            {
                (row, column): self._allowed(history.before(row, column)[prompt[row] :].tolist())
                for row in range(batch)
                for column in range(width)
            },
        )

    def _allowed(self, ids: list[int]) -> Tensor:
        node, other = self._root.follow(ids)
        if other is not None:
            # After an end only ends are allowed, for a loop that continues anyway.
            ended = node.is_end and other in self.eos
            return torch.tensor(self.eos if ended else (), dtype=torch.int64)
        if node.allowed is None:
            ends = self.eos if node.is_end else ()
            node.allowed = torch.tensor(sorted({*node.children, *ends}), dtype=torch.int64)
        return node.allowed
