"""Fusion of a chain and a sampler into a decoder's step, and which parts run on the device."""

import uuid

import attrs

from ...decoding.optional_protocols import stages_of
from ...decoding.protocols import DecoderShape, Processor, Sampler
from ...decoding.sampling_placement import Place, part_name
from ..step import DecoderStep
from ..tensor_parallel.sharding import ranks_of
from .chain_digest import chain_digest, has_rows, same_chain
from .device_sampling import DeviceSampling, sampler_refusal, stage_refusal
from .fused_step import FusedStep


@attrs.frozen(eq=False)
class Fusion:
    """A chain and a sampler, and the decoder's step with them fused."""

    processors: Processor | None
    sampler: Sampler
    step: FusedStep

    widths: tuple[int, ...]
    """Widths that sample: those that score every column."""

    batch_size: int

    _fixes_rows: bool = attrs.field(init=False, repr=False)

    @_fixes_rows.default
    def _look_for_rows(self) -> bool:
        return has_rows(self.processors)

    @classmethod
    def of(
        cls, step: DecoderStep, shape: DecoderShape, processors: Processor | None, sampler: Sampler
    ) -> "Fusion":
        """
        Fuse the whole chain and the sampler into *step*.

        Raises:
            ValueError: A part has no device variant, or does not fit *shape*.
        """
        sampling = DeviceSampling(processors, sampler)
        name = (chain_digest(processors, sampler) or _unique_digest(step))[:16]
        return cls(
            processors,
            sampler,
            FusedStep(step, sampling, shape, f"fused_{name}"),
            tuple(width for width in shape.widths if width <= shape.scored_width),
            shape.batch_size,
        )

    def over(self, step: DecoderStep, shape: DecoderShape) -> "Fusion":
        """The same fusion, with the same name, over another *step* of that *shape*."""
        return attrs.evolve(self, step=FusedStep(step, self.step.sampling, shape, self.step.kind))

    def serves(self, processors: Processor | None, sampler: Sampler) -> bool:
        """
        Whether it samples as *processors* and *sampler* do.

        True for the same objects, or decodekit's own of equal parameters. The sampler's seed may differ: it
        only affects the noise, which is an input.
        """
        return same_chain((processors, sampler), (self.processors, self.sampler))

    def takes(self, rows: int) -> bool:
        """Whether a run over *rows* can use it: with per-row parameters, only the full batch can."""
        return rows == self.batch_size or not self._fixes_rows


def _unique_digest(step: DecoderStep) -> str:
    """A random digest for a chain without a digest of its own, the same on all ranks."""
    ranks, name = ranks_of(step.model), uuid.uuid4().hex
    return name if ranks is None else ranks.broadcast(name.encode()).decode()


def places(processors: Processor | None, sampler: Sampler, fused: bool, why_not: str) -> tuple[Place, ...]:
    """
    Where each processor and the sampler run, and why.

    Args:
        processors: The chain.

        sampler: The sampler.

        fused: Whether all of them are compiled into the decoder's programs.

        why_not: Why not, if each part has a device variant.
    """
    parts: list[tuple[object, str | None]] = [
        *((stage, stage_refusal(stage)) for stage in stages_of(processors)),
        (sampler, sampler_refusal(sampler)),
    ]
    if fused:
        return tuple(Place(repr(part), "device", "it is part of the forward") for part, _ in parts)
    without = next((part for part, refusal in parts if refusal is not None), None)
    if without is not None:
        why_not = f"all run in one place, and {part_name(without)} cannot run on the device"
    return tuple(Place(repr(part), "host", refusal or why_not) for part, refusal in parts)
