"""The fast path of a chain and a sampler, if they have one."""

from collections.abc import Sequence
from typing import TypeAlias

from .compiled.compiled_sampling import CompiledSampling
from .fast_sampling import FastGreedy, FastSampling
from .greedy import Greedy
from .resolved_sampler import ResolvedSampler
from .short_cuts import DrawsFromFew, Narrows, OfFew, Pointwise

FastSampler: TypeAlias = CompiledSampling | FastSampling | FastGreedy

_STAGES = 8
"""Limit on the stages: more might overflow together, though none does alone."""


def fast_sampler(cuts: Sequence[object], sampler: ResolvedSampler) -> FastSampler | None:
    """The fast path, given the short cuts of each stage (None without any); None if there is none."""
    if not cuts and type(sampler.sampler) is Greedy:
        return FastGreedy()
    if not isinstance(sampler.cuts, DrawsFromFew) or len(cuts) > _STAGES:
        return None
    few = [cut for cut in cuts if isinstance(cut, OfFew) and cut.takes_few]
    for place, cut in enumerate(few):
        if isinstance(cut, Narrows):
            before = [one for one in few[:place] if isinstance(one, Pointwise)]
            if len(few) < len(cuts) or len(before) < place:
                return None
            found = FastSampling(tuple(before), cut, tuple(few[place + 1 :]), sampler.cuts.from_few())
            return CompiledSampling.of(found) or found
    return None
