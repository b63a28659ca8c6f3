"""Small decoders, drafters, chains and draft lengths whose every path can be enumerated."""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from decodekit.decoding import Draft, History, MaxNewTokens, SpeculationStep
from decodekit.decoding.protocols import Drafter, Finish, SamplesTokens, StopCondition
from decodekit.decoding.scores import Scores
from decodekit.decoding.stopping.composition import Stop
from decodekit.testing import ScriptedDecoder

ROWS = 64
"""Rows of the decoders: paths per batch."""


def table(seed: int, vocab: int, lines: int = 13) -> Tensor:
    """Random logits, some tokens likely and some not."""
    return torch.randn(lines, vocab, generator=torch.Generator().manual_seed(seed)) * 1.2


def every_token(prefix: Sequence[int]) -> int:
    """A table row that depends on every token, including the newest."""
    state = 1
    for token in prefix:
        state = (state * 5 + token) % 13
    return state


def scripted(
    seed: int, vocab: int, rows: int = ROWS, max_length: int = 16, scale: float = 1.0
) -> ScriptedDecoder:
    """A decoder of up to 4 scored columns, and of trees of up to 7."""
    lines = scale * table(seed, vocab)
    return ScriptedDecoder(
        lines, rows, max_length, widths=(1, 4), scored_width=4, line=every_token, tree_widths=(7,)
    )


@attrs.frozen(eq=False)
class Ends(Stop):
    """
    End a row after *n* new tokens without a word of it before.

    Drafts of a text of two tokens may go past its end, as they may past an end of sequence.
    """

    n: int | list[int]

    @property
    def finishes(self) -> tuple[Finish, ...]:
        return self._limit.finishes

    @property
    def _limit(self) -> StopCondition:
        return MaxNewTokens(self.n)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        return self._limit(scores, history)


@attrs.frozen(eq=False)
class Garbage:
    """Point masses of arbitrary ids: right, wrong, outside the vocabulary, and none."""

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        ids = (history.length * 7 + torch.arange(4) * 5) % 4 - (history.length % 3 == 2).long()
        return Draft(ids)


@attrs.frozen(eq=False)
class LeastLikely:
    """Point mass of the target's least likely token: nearly always wrong."""

    target: Tensor
    """The target's table."""

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        decoder = ScriptedDecoder(self.target, line=every_token)
        ids = torch.full((len(budget), int(budget.max())), -1)
        for row in budget.nonzero().flatten().tolist():
            text = history.before(row, 0).tolist()
            for i in range(int(budget[row])):
                text.append(int(decoder.table[decoder.line(text) % len(decoder.table)].argmin()))
                ids[row, i] = text[-1]
        return Draft(ids)


@attrs.frozen(eq=False)
class ByTurns:
    """
    Alternate tokens of *drawn* and point masses of *certain*.

    Per row, by its length and its newest token.
    """

    drawn: Drafter
    certain: Drafter

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        draft = self.drawn.propose(history, budget, sample)
        ids = self.certain.propose(history, budget, sample).ids[:, : draft.ids.shape[1]]
        ids = torch.nn.functional.pad(ids, (0, draft.ids.shape[1] - ids.shape[1]), value=-1)
        turn = (history.length + history.ids[:, 0].gather(-1, history.length - 1)) % 2 == 0
        if draft.scores is None:
            return Draft(torch.where(turn, ids, draft.ids))
        vocab = draft.scores.shape[-1]
        point = torch.where(ids[..., None] == torch.arange(vocab), 0.0, -torch.inf)
        return Draft(torch.where(turn, ids, draft.ids), torch.where(turn[..., None], point, draft.scores))


@attrs.frozen(eq=False)
class OneAfter:
    """After token 1 only token 0 is allowed, as by a grammar."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        newest = (history.length - 1).clamp(min=0)
        last = history.ids.expand(-1, newest.shape[1], -1).gather(-1, newest[..., None])
        others = torch.arange(logits.shape[-1]) != 0
        return logits.masked_fill((last == 1) & others, -torch.inf)


@attrs.frozen(eq=False)
class NoneAfter:
    """Leaves no token after two equal ones."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        ids = history.ids.expand(-1, history.length.shape[1], -1)
        last, before = (ids.gather(-1, (history.length - n).clamp(min=0)[..., None]) for n in (1, 2))
        return logits.masked_fill((last == before) & (history.length[..., None] > 1), -torch.inf)


@attrs.define(eq=False)
class OneMoreThanAccepted:
    """One more than accepted last time; after none was accepted the next step has no draft."""

    most: int = 3
    allowed: int = 2

    def __call__(self, rows: int) -> int:
        return self.allowed

    def learn(self, outcome: SpeculationStep) -> None:
        accepted = max(outcome.accepted)
        self.allowed = 1 if outcome.allowed == 0 else min(accepted + 1, self.most) if accepted else 0
