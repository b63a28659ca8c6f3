"""Prompt lookup decoding."""

import attrs
import numpy as np
import torch
from attrs import validators
from numpy.typing import NDArray

from ...decoding.history import History
from ...decoding.protocols import Draft, SamplesTokens
from ...decoding.validation import a_whole_number
from .repeated_suffix import RepeatedSuffix, match_evidence
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
            follow = tokens[self._match(tokens).end :]
            if len(follow):
                # What follows the copied tokens is the draft itself: it goes on periodically.
                ids[row, : counts[row]] = np.resize(follow, counts[row])
        return Draft(torch.from_numpy(ids))

    def evidence(self, history: History, budget: torch.Tensor) -> torch.Tensor:
        """The :func:`.repeated_suffix.match_evidence` of each row, ``[batch]`` int64; 0 without a draft."""
        return self.foresee(history, budget)[0]

    def foresee(self, history: History, budget: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and the first token of each row's draft, ``[batch]`` int64; -1 without one."""
        counts = budget.tolist()
        evidence, first_tokens = [0] * len(counts), [-1] * len(counts)
        for row, tokens in row_texts(history, counts):
            match = self._match(tokens)
            if match.length:
                evidence[row], first_tokens[row] = match_evidence(match, tokens), int(tokens[match.end])
        return torch.tensor(evidence), torch.tensor(first_tokens)

    def _match(self, tokens: Ints) -> RepeatedSuffix:
        """The longest repeated suffix of up to :attr:`max_ngram` tokens; where none is, it ends the text."""
        # Where an occurrence of the last token ends; then of the last two, and so on.
        ends, longest = (tokens[:-1] == tokens[-1]).nonzero()[0] + 1, 1
        none = RepeatedSuffix(0, len(tokens), 0)
        if not len(ends):
            return none
        for n in range(2, min(self.max_ngram, len(tokens) - 1) + 1):
            longer = ends[ends.searchsorted(n) :]
            longer = longer[tokens[longer - n] == tokens[-n]]
            if not len(longer):
                break
            ends, longest = longer, n
        if longest < self.min_ngram:
            return none
        return RepeatedSuffix(longest, int(ends[-1]), int(ends[-2]) if len(ends) > 1 else 0)
