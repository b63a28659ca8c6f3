"""What verifications that compare distributions share."""

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import draws_softmax, has_short_cuts, offers_short_cuts
from ...decoding.protocols import Draft, Sampler
from ...decoding.sampling import noise
from ...decoding.sampling.candidates import Candidates, SamplesAmong
from ...decoding.scores import Scores


@has_short_cuts
@attrs.frozen(eq=False)
class DrawnApart:
    """
    *sampler* with noise of its own for the round that begins at *start*, ``[batch]``.

    Nothing that the round's verification draws is to depend on it, and neither is anything of
    another round: a guess that was rejected, or not looked at, says something of its numbers.
    """

    sampler: Sampler
    start: Tensor

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``."""
        return self.sampler(logits, self._apart(history))

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """What a call on all of the vocabulary chooses, from the tokens that are left of it."""
        if offers_short_cuts(self.sampler) and isinstance(self.sampler, SamplesAmong):
            return self.sampler.among(candidates, self._apart(history))
        return self(candidates.dense(), history)

    def _apart(self, history: History) -> History:
        if len(history.random_stream) != len(self.start):
            raise ValueError(
                f"a drafter must draw for all {len(self.start)} rows at once: got {len(history.random_stream)}"
            )
        return attrs.evolve(
            history, random_stream=noise.folded(history.random_stream, noise.DRAFT, self.start)
        )


def drawn_apart(verification: object, sampler: Sampler, start: Tensor) -> DrawnApart:
    """*sampler* for the drafter, if it is known to draw from the softmax of the logits."""
    if not draws_softmax(sampler):
        raise ValueError(
            f"{verification!r} needs a sampler that draws from the softmax of the logits, as Sample "
            f"does: got {sampler!r}. Use ExactMatch(); at temperature 0 nothing accepts more"
        )
    return DrawnApart(sampler, start)


def target_distribution(scores: Scores) -> Tensor:
    """What each column's token is drawn from, ``[batch, k + 1, vocab]`` float64: 0 where none is left."""
    return _softmax(scores.logits)


def draft_distribution(draft: Draft, vocab: int) -> Tensor:
    """
    What each guess was drawn from, ``[batch, k + 1, vocab]`` float64; 0 where there is none.

    So a column without a guess, the last one always, is one in which everything is still to come.
    """
    if draft.parents is not None:
        raise ValueError("distributions are compared along a chain: got a tree of guesses")
    guessed = (draft.ids >= 0)[..., None]
    if draft.scores is None:
        distribution = torch.nn.functional.one_hot(draft.ids.clamp(min=0), vocab).double()
    else:
        distribution = _softmax(draft.scores)
    return torch.nn.functional.pad(torch.where(guessed, distribution, 0.0), (0, 0, 0, 1))


def _softmax(logits: Tensor) -> Tensor:
    # Of nothing but -inf it is NaN, and of a decoder's NaN.
    return logits.cpu().double().softmax(dim=-1).nan_to_num_(nan=0.0)


def of_guesses(distribution: Tensor, draft: Draft) -> Tensor:
    """The probability of each guess ``[batch, k]`` under a distribution ``[batch, k + 1, vocab]``; of none, 0."""
    probability = distribution[:, :-1].gather(-1, draft.ids.clamp(min=0)[..., None]).squeeze(-1)
    return probability.masked_fill(draft.ids < 0, 0.0)


def following(
    residual: Tensor, distribution: Tensor, draft: Draft, choices: Tensor, window: History
) -> Tensor:
    """
    What comes after the guesses that stand.

    Args:
        residual: What the guess leaves of the column's distribution, ``[batch, vocab]``.

        distribution: That distribution: taken where rounding leaves nothing, ``[batch, vocab]``.

        draft: The guesses. A row without any draws nothing here.

        choices: The target's own, ``[batch, k + 1]``: such a row is given the first.

        window: The tokens before each column.

    Returns:
        ``[batch]``: never a token of probability 0, and -1 where no token is left.
    """
    guessed, start = draft.ids[:, 0] >= 0, window.length[:, 0]
    left = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, distribution)
    left = torch.where(guessed[:, None], left, 0.0)
    drawn = noise.draw(window.random_stream, start, noise.RESIDUAL, torch.zeros_like(start), left)
    return torch.where(guessed, drawn, choices[:, 0])


def at_column(values: Tensor, column: Tensor) -> Tensor:
    """Of values ``[batch, columns, ...]`` those of one column a row: ``[batch, ...]``."""
    return values[torch.arange(len(column)), column]
