"""Device variants of stages, recognised by exact type."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import DeviceSafe, Local
from ...decoding.protocols import Processor
from ...processors import TopK, TopP
from .device_refusal import refusal
from .device_top_k import DeviceTopK
from .device_top_p import DeviceTopP


class DeviceStage(Protocol):
    """A device variant of a stage, without sort, cumulative sum or data-dependent shapes."""

    def survivors_after(self, before: int | None) -> int | None:
        """
        Upper bound of the values left, ties with the last not counted; None if unbounded.

        Args:
            before: The same before this stage.
        """
        ...

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """The result of the host's call, up to the rounding of float32 sums."""
        ...


_VARIANTS: dict[type, Callable[[Any, int | None], DeviceStage | None]] = {
    TopK: DeviceTopK.of,
    TopP: DeviceTopP.of,
}
"""By type, the variant of a stage given the values left before it; None for a stage that is off."""


def stages_on_device(stages: tuple[Processor, ...]) -> list[Processor]:
    """
    *stages* as they run on the device; those that are off are left out.

    Raises:
        ValueError: A stage has no device variant and does not declare itself device-safe.
    """
    found: list[Processor] = []
    survivors: int | None = None
    for stage in stages:
        variant_of = _VARIANTS.get(type(stage))
        if variant_of is not None:
            variant = variant_of(stage, survivors)
            if variant is not None:
                found.append(variant)
                survivors = variant.survivors_after(survivors)
        elif isinstance(stage, DeviceSafe) and stage.device_safe:
            found.append(stage)
            # A stage that reads ids may break ties with the k-th logit, which adds distinct values.
            survivors = survivors if isinstance(stage, Local) and stage.local else None
        else:
            raise refusal(stage, "it does not declare itself device_safe, and has no device variant")
    return found
