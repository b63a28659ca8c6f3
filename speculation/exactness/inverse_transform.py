"""A sampler whose choices can be enumerated."""

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
    """In double precision, and 0 where no token is left. Its own: it checks those of others."""
    return logits.double().softmax(dim=-1).nan_to_num(nan=0.0)


@attrs.frozen(eq=False)
class InverseTransform:
    """
    Draw a token from the softmax of the logits, by one number a position.

    It has the distribution of :class:`~decodekit.decoding.Sample`, asks what can be enumerated, and
    couples draft and target less closely.
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
        """What a call draws, and the likeliest *n* - 1 besides: ``[batch, width, n]``; *n* <= vocab."""
        drawn = self(logits, history)[..., None]
        first = logits.scatter(-1, drawn, torch.inf)
        return first.argsort(dim=-1, descending=True, stable=True)[..., :n]


@attrs.frozen(eq=False)
class _WhereRead(InverseTransform):
    """
    The same for a verification that does not look at the choices of rows with guesses.

    There it gives any token that is left: answers that nobody hears would multiply the paths.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        guessed = history.length[:, -1] > history.length[:, 0]
        asked = torch.where(guessed[:, None, None], -torch.inf, logits)
        return torch.where(guessed[:, None], logits.argmax(dim=-1), super().__call__(asked, history))


@attrs.frozen(eq=False)
class _DraftingAsEver:
    """*verification*, whose drafters draw as ever while the target draws :class:`_WhereRead`."""

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
    """*generator*, with a sampler that can be enumerated."""
    if not draws_softmax(generator.sampler):
        raise ValueError(
            f"'sampler' must draw from the softmax of the logits, as Sample does: got {generator.sampler!r}"
        )
    if reads_target_tokens(generator.verification):
        return attrs.evolve(generator, sampler=InverseTransform())
    verification = _DraftingAsEver(generator.verification)
    return attrs.evolve(generator, sampler=_WhereRead(), verification=verification)
