"""A sampler with its short cuts."""

from collections.abc import Callable

import attrs
from torch import Tensor

from ..history import History
from ..optional_protocols import Seeded
from ..protocols import Sampler
from . import noise
from .candidates import Candidates
from .short_cuts import SamplesAmong, SamplesFaster, short_cuts_of


@attrs.frozen(eq=False)
class ResolvedSampler:
    """A sampler, called in the fastest way it has."""

    sampler: Sampler

    cuts: object | None
    """Its short cuts, of which these are resolved: *faster* and *among*."""

    faster: Callable[[Tensor, History], Tensor] | None
    among: Callable[[Candidates, History], Tensor] | None

    @classmethod
    def of(cls, sampler: Sampler) -> "ResolvedSampler":
        """*sampler* with the short cuts of its exact type."""
        cuts = short_cuts_of(sampler)
        return cls(
            sampler,
            cuts,
            faster=cuts.sample if isinstance(cuts, SamplesFaster) else None,
            among=cuts.among if isinstance(cuts, SamplesAmong) else None,
        )

    @property
    def may_keep(self) -> bool:
        """Whether it may keep a reference to its input; one with short cuts does not."""
        return self.cuts is None

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """The ids that a call of the sampler gives."""
        if self.faster is not None and logits.device.type == "cpu":
            return self.faster(logits, history)
        if self.cuts is not None:
            return self.sampler(logits, history)
        seed = self.sampler.seed if isinstance(self.sampler, Seeded) else 0
        # Of a fresh seed nothing is known but that it is no other sampler's.
        before = noise.FOLDED_SEED.set(0 if seed is None else seed)
        try:
            return self.sampler(logits, history)
        finally:
            noise.FOLDED_SEED.reset(before)
