"""Prompt lookup decoding."""

import attrs
import numpy as np
import torch
from attrs import validators
from numpy.typing import NDArray

from ...decoding.history import History
from ...decoding.protocols import Draft, SamplesTokens
from ...decoding.validation import a_whole_number

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
        ids = torch.full((len(budget), int(budget.max())), -1)
        for row in budget.nonzero().flatten().tolist():
            tokens = history.ids[row, 0, : int(history.length[row, 0])].numpy()
            follow = tokens[self._continuation(tokens) :]
            if len(follow):
                # What follows the copied tokens is the draft itself: it goes on periodically.
                count = int(budget[row])
                ids[row, :count] = torch.from_numpy(np.resize(follow, count))
        return Draft(ids)

    def _continuation(self, tokens: Ints) -> int:
        """Start of the continuation of the longest repeated suffix; the end of *tokens* if none repeats."""
        # matched[e]: how many tokens before position e equal those at the end.
        ends = np.arange(1, len(tokens))
        matched = np.zeros(len(ends), dtype=np.int64)
        alive = np.ones(len(ends), dtype=bool)
        for n in range(1, min(self.max_ngram, len(tokens) - 1) + 1):
            alive &= (ends >= n) & (tokens[ends - n] == tokens[-n])
            matched[alive] = n
        longest = int(matched.max(initial=0))
        if longest < self.min_ngram:
            return len(tokens)
        return int(ends[np.flatnonzero(matched == longest)[-1]])
