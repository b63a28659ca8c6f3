"""Prompt lookup decoding."""

import attrs
import numpy as np
import torch
from attrs import validators
from numpy.typing import NDArray

from ...decoding.history import History
from ...decoding.protocols import Draft, SamplesTokens
from ...decoding.validation import a_whole_number
from .row_texts import row_texts

Ints = NDArray[np.int64]


@attrs.frozen(eq=False)
class PromptLookup:
    """
    Draft the continuation of an earlier occurrence of the last n-gram.

    The longest n-gram at the row's end that occurred earlier in it, prompt included, is looked
    up at its latest occurrence; the tokens that followed there are the draft, and after them the draft's
    own tokens, so that text of a short period is continued at full length. It needs no forward, and pays
    where text repeats itself: code, summaries, edits.

    Saxena, 2023, `Prompt Lookup Decoding <https://github.com/apoorvumang/prompt-lookup-decoding>`_.
    """

    max_ngram: int = attrs.field(default=4, validator=[a_whole_number, validators.ge(1)])
    """Longest n-gram to look up."""

    min_ngram: int = attrs.field(default=1, validator=[a_whole_number, validators.ge(1)])
    """Shortest n-gram to look up. 2 drafts less often, with a higher acceptance rate."""

    @min_ngram.validator
    def _(self, attribute: object, value: int) -> None:
        if value > self.max_ngram:
            raise ValueError(f"'min_ngram' must be <= max_ngram, {self.max_ngram}: got {value}")

    def propose(self, history: History, budget: torch.Tensor, sample: SamplesTokens) -> Draft:
        """Propose up to *budget* tokens ``[batch]`` for each row."""
        counts = budget.tolist()
        ids = np.full((len(counts), max(counts)), -1)
        for row, tokens in row_texts(history, counts):
            follow = tokens[self._match(tokens)[1] :]
            if len(follow):
                # What follows the copied tokens is the draft itself: it goes on periodically.
                ids[row, : counts[row]] = np.resize(follow, counts[row])
        return Draft(torch.from_numpy(ids))

    def evidence(self, history: History, budget: torch.Tensor) -> torch.Tensor:
        """Match length of each row, up to :attr:`max_ngram`, ``[batch]`` int64; 0 without a draft."""
        return self.foresee(history, budget)[0]

    def foresee(self, history: History, budget: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and the first token of each row's draft, ``[batch]`` int64; -1 without one."""
        counts = budget.tolist()
        lengths, first_tokens = [0] * len(counts), [-1] * len(counts)
        for row, tokens in row_texts(history, counts):
            lengths[row], start = self._match(tokens)
            if lengths[row]:
                first_tokens[row] = int(tokens[start])
        return torch.tensor(lengths), torch.tensor(first_tokens)

    def _match(self, tokens: Ints) -> tuple[int, int]:
        """Length of the longest repeated suffix and start of its continuation; 0 and the end if none is."""
        # Where an occurrence of the last token ends; then of the last two, and so on.
        ends, longest = (tokens[:-1] == tokens[-1]).nonzero()[0] + 1, 1
        if not len(ends):
            return 0, len(tokens)
        for n in range(2, min(self.max_ngram, len(tokens) - 1) + 1):
            longer = ends[ends.searchsorted(n) :]
            longer = longer[tokens[longer - n] == tokens[-n]]
            if not len(longer):
                break
            ends, longest = longer, n
        return (longest, int(ends[-1])) if longest >= self.min_ngram else (0, len(tokens))
