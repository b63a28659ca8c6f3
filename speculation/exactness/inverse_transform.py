"""Inverse transform sampling, which can be enumerated."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.generator import Generator
from ...decoding.history import History
from ...decoding.optional_protocols import compares_scores, draws_softmax, reads_target_tokens
from ...decoding.protocols import Draft, Sampler, Verification
from ...decoding.sampling import noise
from ...decoding.scores import Scores


def softmax(logits: Tensor) -> Tensor:
    """Softmax in double precision; 0 where no token is left. Kept apart from the code that it checks."""
    return logits.double().softmax(dim=-1).nan_to_num(nan=0.0)


@attrs.frozen(eq=False)
class InverseTransform:
    """
    Inverse transform sampling from the softmax, with one uniform number per position.

    Same distribution as :class:`~decodekit.decoding.Sample`, and enumerable; draft and target
    agree less often.
    """

    draws_softmax: ClassVar[bool] = True

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``; all ``-inf`` gives any id."""
        distribution = softmax(logits)
        zero = torch.zeros_like(history.length)
        return noise.draw(
            history.random_stream[:, None], history.length, noise.TOKEN, zero, distribution
        ).clamp(min=0)

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """The sampled token and the top *n* - 1 others: ``[batch, width, n]``; *n* <= vocab."""
        drawn = self(logits, history)[..., None]
        first = logits.scatter(-1, drawn, torch.inf)
        return first.argsort(dim=-1, descending=True, stable=True)[..., :n]


@attrs.frozen(eq=False)
class _SkipUnreadRows(InverseTransform):
    """
    Variant for verifications that ignore the sampled tokens of rows with a draft.

    Those rows get the argmax instead, as unused outcomes would multiply the paths.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        has_draft = history.length[:, -1] > history.length[:, 0]
        masked = torch.where(has_draft[:, None, None], -torch.inf, logits)
        return torch.where(has_draft[:, None], logits.argmax(dim=-1), super().__call__(masked, history))


@attrs.frozen(eq=False)
class _UnchangedDrafting:
    """*verification* with drafting by :class:`InverseTransform`, not by :class:`_SkipUnreadRows`."""

    verification: Verification

    @property
    def compares_scores(self) -> bool:
        return compares_scores(self.verification)

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        return self.verification.drafting(InverseTransform(), start)

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        return self.verification(draft, choices, scores, window)


def enumerable(generator: Generator) -> Generator:
    """Replace the sampler of *generator* by an enumerable one."""
    if not draws_softmax(generator.sampler):
        raise ValueError(
            f"'sampler' must draw from the softmax of the logits, as Sample does: got {generator.sampler!r}"
        )
    if reads_target_tokens(generator.verification):
        return attrs.evolve(generator, sampler=InverseTransform())
    verification = _UnchangedDrafting(generator.verification)
    return attrs.evolve(generator, sampler=_SkipUnreadRows(), verification=verification)
