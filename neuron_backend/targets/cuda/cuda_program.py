"""Running recorded programs: one CUDA graph for each width and span."""

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
    """Memory for inputs and results that all programs of a decoder share."""

    inputs: Staging
    outputs: Staging
    device: torch.device
    runtime: Runtime

    @classmethod
    def of(cls, device: torch.device, runtime: Runtime, inputs: int, outputs: int) -> "StagingBuffers":
        """Allocate *inputs* and *outputs* bytes."""
        blocks = [torch.zeros(size, dtype=torch.uint8, device=device) for size in (inputs, outputs)]
        staged = [Staging(runtime.staging(len(block)), block) for block in blocks]
        return cls(inputs=staged[0], outputs=staged[1], device=device, runtime=runtime)


class CudaProgram:
    """The program of one width: host tensors in and out, over weights and cache on a device."""

    def __init__(
        self,
        buffers: StagingBuffers,
        replays: Mapping[int, Replay],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ):
        """
        Combine the recorded programs of all spans.

        Args:
            buffers: The memory that they were recorded over.

            replays: Programs by the number of slots that they attend to, ascending.

            inputs: The step's inputs, without slots and cache.

            outputs: The step's results: logits, or sampled tokens and logits.
        """
        self.replays = dict(replays)
        self._buffers = buffers
        self._specs = tuple(inputs)
        self._host_inputs = tensors_in(buffers.inputs.host, inputs)
        self._input_size = size_of(inputs)
        # Only the first result is copied to the host: logits, or the sampled tokens.
        self._host_output = tensors_in(buffers.outputs.host, outputs)[0]
        self._output_size = outputs[0].size
        self._device_logits = tensors_in(buffers.outputs.device, outputs)[1:]

    def __call__(self, *inputs: Tensor) -> Any:
        """
        Run on the step's checked inputs without the cache.

        Returns:
            Logits on the host, valid until the next forward. Of a step that samples: the sampled tokens on
            the host, and the logits on the device, valid until the next forward.

        Raises:
            ValueError: A tensor has another shape or dtype than when the program was recorded.
        """
        *others, slots = inputs
        attended = slots.shape[0]
        replay = next(replay for size, replay in self.replays.items() if size >= attended)
        if tuple(map(TensorSpec.of, others)) != self._specs:
            raise ValueError(f"inputs must be {self._specs}: got {tuple(map(TensorSpec.of, others))}")
        buffers = self._buffers
        # Not in the caller's inference mode: callers may write to the result.
        with torch.inference_mode(False), torch.no_grad(), on_device(buffers.device):
            for host_input, tensor in zip(self._host_inputs, others, strict=True):
                host_input.copy_(tensor)
            buffers.inputs.up(self._input_size)
            replay()
            buffers.outputs.down(self._output_size)
            buffers.runtime.wait(buffers.device)
            if not self._device_logits:
                return self._host_output
            # A copy: sampled tokens are few, and callers keep them.
            return self._host_output.clone(), *self._device_logits
