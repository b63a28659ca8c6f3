"""Device sampling: a chain of processors and a sampler as one module of supported operations."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...decoding.history import History
from ...decoding.optional_protocols import stages_of
from ...decoding.protocols import Processor, Sampler
from ...decoding.sampling.greedy import Greedy
from ...decoding.sampling.sample import Sample
from .device_refusal import reason_of, refusal
from .device_samplers import DeviceGreedy, DeviceSample
from .device_stages import stages_on_device


class DeviceSampler(Protocol):
    """A sampler whose noise is an input."""

    def noise(self, history: History, vocab: int) -> tuple[Tensor, ...]:
        """The noise inputs, made on the host, float32."""
        ...

    def __call__(self, logits: Tensor, *noise: Tensor) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``."""
        ...


class DeviceSampling(nn.Module):
    """
    :class:`~decodekit.decoding.sampling.pipeline.SamplingPipeline` in operations that neuronx-cc supports.

    Stages that are ``device_safe`` are used unchanged; ``TopK``, ``TopP``, ``Greedy`` and ``Sample`` have
    device variants. Top-p is cheapest after a top-k, without a stage between them that reads token ids. All
    random numbers are inputs, made on the host by :meth:`inputs`, so both can be compared draw by draw.
    Results equal the host's up to rounding of float32 sums: compile without automatic casts of matmuls to
    bfloat16. Logits must be finite or ``-inf``; use ``RemoveInvalid()`` first otherwise.

    >>> import torch
    >>> from decodekit.decoding import Greedy
    >>> from decodekit.decoding.history import History
    >>> from decodekit.processors import Temperature, TopK
    >>> sampling = DeviceSampling(Temperature(0.5) | TopK(2), Greedy())
    >>> zeros = torch.zeros(1, 1, 4, dtype=torch.int64)
    >>> empty = History(zeros, zeros[:, 0, :1], zeros[:, 0, 0], zeros[:, 0, 0])
    >>> sampling(*sampling.inputs(torch.tensor([[[0.1, 0.7, 0.2]]]), empty))
    tensor([[1]])

    Args:
        processors: A chain, one processor, or None.

        sampler: ``Greedy()`` or ``Sample()``.

    Raises:
        ValueError: A part has no device variant. The message names it and the reason.
    """

    def __init__(self, processors: Processor | None, sampler: Sampler):
        super().__init__()
        self.stages = stages_on_device(stages_of(processors))
        variant = _DEVICE_SAMPLERS.get(type(sampler))
        if variant is None:
            raise refusal(sampler, "only Greedy and Sample have a device variant")
        self.sampler: DeviceSampler = variant(sampler)

    def inputs(self, logits: Tensor, history: History) -> tuple[Tensor, ...]:
        """The inputs of :meth:`forward`, noise included."""
        noise = self.sampler.noise(history, logits.shape[-1])
        return (logits.float(), history.ids, history.length, history.prompt, *noise)

    def forward(self, logits: Tensor, ids: Tensor, length: Tensor, prompt: Tensor, *noise: Tensor) -> Tensor:
        """
        Sample in each column.

        Args:
            logits: ``[batch, width, vocab]`` float32.

            ids: As in :class:`~decodekit.decoding.history.History`, ``[batch, paths, capacity]``.

            length: ``[batch, width]``.

            prompt: ``[batch]``.

            noise: The sampler's noise.

        Returns:
            Ids ``[batch, width]``; -1 in a column whose scores are all ``-inf`` or NaN.
        """
        # No device stage reads the random stream.
        return self.sample(logits, History(ids, length, prompt, torch.zeros_like(prompt)), *noise)

    def sample(self, logits: Tensor, history: History, *noise: Tensor) -> Tensor:
        """As :meth:`forward`, with a :class:`~decodekit.decoding.history.History`."""
        for stage in self.stages:
            logits = stage(logits, history)
        sampled = self.sampler(logits, *noise)
        # Also -1 for NaN, which compares as False.
        return torch.where(logits.amax(dim=-1) > -torch.inf, sampled, -1)

    def history_reads(self, logits: Tensor, history: History) -> frozenset[str]:
        """
        Attributes of a :class:`~decodekit.decoding.history.History` that the stages read.

        Which tensors a stage reads does not depend on their contents, so one call determines it.

        Args:
            logits: Of the shape that is going to be sampled from, with any values.

            history: As for a call.

        Raises:
            ValueError: A stage does not fit the number of rows or the vocabulary, or reads the random
                stream, which is not available on the device.
        """
        recording = _RecordingHistory(history.ids, history.length, history.prompt, history.random_stream)
        self.sample(logits, recording, *self.sampler.noise(history, logits.shape[-1]))
        if "random_stream" in recording.reads:
            raise ValueError("a stage for the device must not draw: got one that reads the random stream")
        return frozenset(recording.reads)


class _RecordingHistory(History):
    """A history that records which of its attributes are read."""

    reads: set[str]

    def __init__(self, ids: Tensor, length: Tensor, prompt: Tensor, random_stream: Tensor):
        super().__init__(ids, length, prompt, random_stream)
        # The class is frozen.
        object.__setattr__(self, "reads", set())

    def __getattribute__(self, name: str) -> Any:
        if name in ("ids", "length", "prompt", "random_stream"):
            self.reads.add(name)
        return super().__getattribute__(name)


def stage_refusal(stage: Processor) -> str | None:
    """Why *stage* has no device variant; None if it has one."""
    return _reason_of(stage, Greedy())


def sampler_refusal(sampler: Sampler) -> str | None:
    """Why *sampler* has no device variant; None if it has one."""
    return _reason_of(None, sampler)


def _reason_of(stage: Processor | None, sampler: Sampler) -> str | None:
    try:
        DeviceSampling(stage, sampler)
    except ValueError as error:
        return reason_of(error)
    return None


_DEVICE_SAMPLERS = {Greedy: DeviceGreedy, Sample: DeviceSample}
