"""Programs that were recorded: one for each width and span, and none later."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from ..device_tensors import on_device
from .cuda_runtime import Replay, Runtime
from .cuda_staging import Staging, TensorSpec, size_of, tensors_in


@attrs.frozen(eq=False)
class StagingBuffers:
    """What all programs of a decoder get their inputs through, and leave their results in."""

    inputs: Staging
    outputs: Staging
    device: torch.device
    runtime: Runtime

    @classmethod
    def of(cls, device: torch.device, runtime: Runtime, inputs: int, outputs: int) -> "StagingBuffers":
        """Room for so many bytes."""
        there = [torch.zeros(size, dtype=torch.uint8, device=device) for size in (inputs, outputs)]
        staged = [Staging(runtime.staging(len(block)), block) for block in there]
        return cls(inputs=staged[0], outputs=staged[1], device=device, runtime=runtime)


class CudaProgram:
    """What runs at one width: takes and gives tensors of the host, over weights and cache of a device."""

    def __init__(
        self,
        exchange: StagingBuffers,
        replays: Mapping[int, Replay],
        given: Sequence[TensorSpec],
        made: Sequence[TensorSpec],
    ):
        """
        Put the recorded programs of all spans together.

        Args:
            exchange: The memory that they were recorded over.

            replays: By the number of slots that they attend to, ascending.

            given: The step's inputs, without slots and cache.

            made: The step's results: logits, or the choice and logits.
        """
        self.replays = dict(replays)
        self._exchange = exchange
        self._places = tuple(given)
        self._given = tensors_in(exchange.inputs.host, given)
        self._size_given = size_of(given)
        # Of a choice and logits, the choice lies in front, and is all that is brought over.
        self._made_here = tensors_in(exchange.outputs.host, made)[0]
        self._size_made = made[0].size
        self._logits_there = tensors_in(exchange.outputs.device, made)[1:]

    def __call__(self, *inputs: Tensor) -> Any:
        """
        What the step takes before the cache, checked, to logits on the host, until the next forward.

        Of a step that chooses: to the choice, on the host, and the logits, on the device until the
        next forward.

        Raises:
            ValueError: A tensor has another shape or dtype than it had when the program was recorded.
        """
        *others, slots = inputs
        attended = slots.shape[0]
        replay = next(replay for size, replay in self.replays.items() if size >= attended)
        if tuple(map(TensorSpec.of, others)) != self._places:
            raise ValueError(f"inputs must be {self._places}: got {tuple(map(TensorSpec.of, others))}")
        exchange = self._exchange
        # Whether the caller is in inference mode must not matter: what it gets is to be written to.
        with torch.inference_mode(False), torch.no_grad(), on_device(exchange.device):
            for place, tensor in zip(self._given, others, strict=True):
                place.copy_(tensor)
            exchange.inputs.up(self._size_given)
            replay()
            exchange.outputs.down(self._size_made)
            exchange.runtime.wait(exchange.device)
            if not self._logits_there:
                return self._made_here
            # Small, and kept by who asked for it.
            return self._made_here.clone(), *self._logits_there
