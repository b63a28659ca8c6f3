"""Shared parts of the verifications that compare distributions."""

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
class IndependentNoise:
    """
    *sampler* with independent noise for the speculation step at position *start*, ``[batch]``.

    Neither the step's verification nor another step may reuse this noise: rejecting or skipping a
    draft token reveals information about it.
    """

    sampler: Sampler
    start: Tensor

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``."""
        return self.sampler(logits, self._apart(history))

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """Sample from the remaining *candidates*, as a call on the full vocabulary would."""
        if offers_short_cuts(self.sampler) and isinstance(self.sampler, SamplesAmong):
            return self.sampler.among(candidates, self._apart(history))
        return self(candidates.dense(), history)

    def _apart(self, history: History) -> History:
        streams = history.random_stream
        if len(streams) != len(self.start):
            raise ValueError(
                f"a drafter must draw for all {len(self.start)} rows at once: got {len(streams)}"
            )
        return attrs.evolve(history, random_stream=noise.folded(streams, noise.DRAFT, self.start))


def with_independent_noise(verification: object, sampler: Sampler, start: Tensor) -> IndependentNoise:
    """Wrap *sampler* for drafting; ``ValueError`` unless it draws from the softmax of the logits."""
    if not draws_softmax(sampler):
        raise ValueError(
            f"{verification!r} needs a sampler that draws from the softmax of the logits, as Sample "
            f"does: got {sampler!r}. Use ExactMatch(); at temperature 0 nothing accepts more"
        )
    return IndependentNoise(sampler, start)


def target_distribution(scores: Scores) -> Tensor:
    """Target distribution, ``[batch, k + 1, vocab]`` float64; all 0 where no token is left."""
    return _softmax(scores.logits)


def draft_distribution(draft: Draft, vocab: int) -> Tensor:
    """
    Draft distribution, ``[batch, k + 1, vocab]`` float64; 0 in columns without a draft token.

    The last column never has one. There the residual is the whole target distribution.
    """
    if draft.parents is not None:
        raise ValueError("distributions are compared along a chain: got a tree")
    has_draft = (draft.ids >= 0)[..., None]
    if draft.scores is None:
        distribution = torch.nn.functional.one_hot(draft.ids.clamp(min=0), vocab).double()
    else:
        distribution = _softmax(draft.scores)
    return torch.nn.functional.pad(torch.where(has_draft, distribution, 0.0), (0, 0, 0, 1))


def _softmax(logits: Tensor) -> Tensor:
    # All -inf, or NaN logits, give NaN.
    return logits.cpu().double().softmax(dim=-1).nan_to_num_(nan=0.0)


def token_probabilities(distribution: Tensor, draft: Draft) -> Tensor:
    """Probability of each draft token, ``[batch, k]``, under ``[batch, k + 1, vocab]``; 0 for -1."""
    probability = distribution[:, :-1].gather(-1, draft.ids.clamp(min=0)[..., None]).squeeze(-1)
    return probability.masked_fill(draft.ids < 0, 0.0)


def next_token(
    residual: Tensor, distribution: Tensor, draft: Draft, choices: Tensor, window: History
) -> Tensor:
    """
    Sample the token after the accepted ones.

    Args:
        residual: Residual distribution, not normalised, ``[batch, vocab]``.

        distribution: Target distribution, used where the residual rounds to 0, ``[batch, vocab]``.

        draft: The draft tokens.

        choices: The target's sampled tokens, ``[batch, k + 1]``: rows without a draft take the first.

        window: The tokens before each column.

    Returns:
        ``[batch]``: never a token of probability 0, and -1 where no token is left.
    """
    has_draft, start = draft.ids[:, 0] >= 0, window.length[:, 0]
    left = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, distribution)
    left = torch.where(has_draft[:, None], left, 0.0)
    drawn = noise.draw(window.random_stream, start, noise.RESIDUAL, torch.zeros_like(start), left)
    return torch.where(has_draft, drawn, choices[:, 0])


def at_column(values: Tensor, column: Tensor) -> Tensor:
    """Select one column per row of values ``[batch, columns, ...]``: ``[batch, ...]``."""
    return values[torch.arange(len(column)), column]
