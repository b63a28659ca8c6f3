"""Noise for drafting that neither a verification nor another step uses."""

import attrs
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import draws_softmax
from ...decoding.protocols import Sampler
from ...decoding.sampling import noise
from ...decoding.sampling.candidates import Candidates
from ...decoding.sampling.resolved_sampler import ResolvedSampler
from ...decoding.sampling.short_cuts import register


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
        return self.sampler(logits, self.apart(history))

    def apart(self, history: History) -> History:
        """*history* with random streams of its own."""
        streams = history.random_stream
        if len(streams) != len(self.start):
            raise ValueError(
                f"a drafter must draw for all {len(self.start)} rows at once: got {len(streams)}"
            )
        return attrs.evolve(history, random_stream=noise.folded(streams, noise.DRAFT, self.start))


@attrs.frozen(eq=False)
class IndependentNoiseShortCuts:
    """The short cuts of the sampler inside, with the noise of the sampler around it."""

    sampler: IndependentNoise

    _inside: ResolvedSampler = attrs.field(init=False)

    @_inside.default
    def _resolve(self) -> ResolvedSampler:
        return ResolvedSampler.of(self.sampler.sampler)

    def sample(self, logits: Tensor, history: History) -> Tensor:
        """See :class:`~decodekit.decoding.sampling.short_cuts.SamplesFaster`."""
        if self._inside.faster is None:
            return self.sampler(logits, history)
        return self._inside.faster(logits, self.sampler.apart(history))

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """See :class:`~decodekit.decoding.sampling.short_cuts.SamplesAmong`."""
        if self._inside.among is None:
            return self.sampler(candidates.dense(), history)
        return self._inside.among(candidates, self.sampler.apart(history))


register(IndependentNoise, IndependentNoiseShortCuts)


def with_independent_noise(verification: object, sampler: Sampler, start: Tensor) -> IndependentNoise:
    """Wrap *sampler* for drafting; ``ValueError`` unless it draws from the softmax of the logits."""
    if not draws_softmax(sampler):
        raise ValueError(
            f"{verification!r} needs a sampler that draws from the softmax of the logits, as Sample "
            f"does: got {sampler!r}. Use ExactMatch(); at temperature 0 nothing accepts more"
        )
    return IndependentNoise(sampler, start)
