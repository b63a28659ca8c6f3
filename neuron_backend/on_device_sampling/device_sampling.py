"""A chain of processors and a sampler as one module for the device."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...decoding.history import History
from ...decoding.optional_protocols import DeviceSafe, Local, stages_of
from ...decoding.protocols import Processor, Sampler
from ...decoding.sampling.greedy import Greedy
from ...decoding.sampling.sample import Sample
from ...processors import TopK, TopP
from ...processors.parameter import is_scalar
from .device_samplers import DeviceGreedy, DeviceSample
from .device_stages import LARGEST_K, DeviceTopK, DeviceTopP


class DeviceSampler(Protocol):
    """A sampler whose noise is an input."""

    def noise(self, history: History, vocab: int) -> tuple[Tensor, ...]:
        """What it draws with, on the host, float32."""
        ...

    def __call__(self, logits: Tensor, *noise: Tensor) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``."""
        ...


class DeviceSampling(nn.Module):
    """
    :class:`~decodekit.decoding.sampling.pipeline.SamplingPipeline` in operations that neuronx-cc takes.

    Stages that are ``device_safe`` are taken as they are; top-k, top-p, greedy choice and
    sampling have variants here. Top-p costs least after a top-k, with nothing in between that
    looks at token ids. All random numbers are inputs, made on the host by
    :meth:`inputs`, so a run on the device can be compared with one on the host draw by draw.
    The results are the host's, up to the rounding of float32 sums: compile it without automatic
    casts to bfloat16, which matrix products would be subject to. Logits are finite or ``-inf``;
    where they may not be, ``RemoveInvalid()`` comes first.

    >>> import torch
    >>> from decodekit.decoding import Greedy
    >>> from decodekit.decoding.history import History
    >>> from decodekit.processors import Temperature, TopK
    >>> choice = DeviceSampling(Temperature(0.5) | TopK(2), Greedy())
    >>> nothing = torch.zeros(1, 1, 4, dtype=torch.int64)
    >>> start = History(nothing, nothing[:, 0, :1], nothing[:, 0, 0], nothing[:, 0, 0])
    >>> choice(*choice.inputs(torch.tensor([[[0.1, 0.7, 0.2]]]), start))
    tensor([[1]])

    Args:
        processors: A chain, one processor, or None.

        sampler: ``Greedy()`` or ``Sample()``.

    Raises:
        ValueError: A part has no form for the device. The message names it and says why.
    """

    def __init__(self, processors: Processor | None, sampler: Sampler):
        super().__init__()
        self.stages = _on_device(stages_of(processors))
        variant = _DEVICE_SAMPLERS.get(type(sampler))
        if variant is None:
            raise _refusal(sampler, "only Greedy and Sample have a form for it")
        self.sampler: DeviceSampler = variant(sampler)

    def inputs(self, logits: Tensor, history: History) -> tuple[Tensor, ...]:
        """What :meth:`forward` takes, of which the noise is made here."""
        noise = self.sampler.noise(history, logits.shape[-1])
        return (logits.float(), history.ids, history.length, history.prompt, *noise)

    def forward(self, logits: Tensor, ids: Tensor, length: Tensor, prompt: Tensor, *noise: Tensor) -> Tensor:
        """
        Choose in each column.

        Args:
            logits: ``[batch, width, vocab]`` float32.

            ids: As in the :class:`~decodekit.decoding.history.History`, ``[batch, paths, capacity]``.

            length: ``[batch, width]``.

            prompt: ``[batch]``.

            noise: What the sampler draws with.

        Returns:
            ``[batch, width]``; -1 in a column whose scores are all ``-inf`` or NaN.
        """
        # No stage that is left here draws.
        return self.sample(logits, History(ids, length, prompt, torch.zeros_like(prompt)), *noise)

    def sample(self, logits: Tensor, history: History, *noise: Tensor) -> Tensor:
        """As :meth:`forward`, of a history as a whole."""
        for stage in self.stages:
            logits = stage(logits, history)
        chosen = self.sampler(logits, *noise)
        # A comparison with NaN is false as well, so garbage is never taken for a choice.
        return torch.where(logits.amax(dim=-1) > -torch.inf, chosen, -1)

    def history_reads(self, logits: Tensor, history: History) -> frozenset[str]:
        """
        Which attributes of a :class:`~decodekit.decoding.history.History` the choice depends on.

        Whether a stage looks at a tensor does not depend on what stands in it, so one choice tells.

        Args:
            logits: Of the shape that is going to be chosen from, whatever their values.

            history: As for a call.

        Raises:
            ValueError: A stage does not fit the number of rows or the vocabulary, or looks at the
                random stream, which the device does not have.
        """
        watched = _RecordingHistory(history.ids, history.length, history.prompt, history.random_stream)
        self.sample(logits, watched, *self.sampler.noise(history, logits.shape[-1]))
        if "random_stream" in watched.reads:
            raise ValueError("a stage for the device must not draw: got one that looks at the random stream")
        return frozenset(watched.reads)


class _RecordingHistory(History):
    """A history that remembers what of it was looked at."""

    reads: set[str]

    def __init__(self, ids: Tensor, length: Tensor, prompt: Tensor, random_stream: Tensor):
        super().__init__(ids, length, prompt, random_stream)
        # What is frozen is set once.
        object.__setattr__(self, "reads", set())

    def __getattribute__(self, name: str) -> Any:
        if name in ("ids", "length", "prompt", "random_stream"):
            self.reads.add(name)
        return super().__getattribute__(name)


def stage_refusal(stage: Processor) -> str | None:
    """Why *stage* has no form for the device; None if it has one."""
    return _reason_of(stage, Greedy())


def sampler_refusal(sampler: Sampler) -> str | None:
    """Why *sampler* has no form for the device; None if it has one."""
    return _reason_of(None, sampler)


def _reason_of(stage: Processor | None, sampler: Sampler) -> str | None:
    try:
        DeviceSampling(stage, sampler)
    except ValueError as error:
        return str(error).partition(_CANNOT)[2]
    return None


_DEVICE_SAMPLERS = {Greedy: DeviceGreedy, Sample: DeviceSample}

_CANNOT = " cannot run on the device: "


def _on_device(stages: tuple[Processor, ...]) -> list[Processor]:
    found: list[Processor] = []
    survivors: int | None = None
    for stage in stages:
        if isinstance(stage, TopK):
            if not is_scalar(stage.k, 0):
                found.append(_top_k(stage))
                survivors = _survivors(stage, survivors)
        elif isinstance(stage, TopP):
            if not is_scalar(stage.p, 1.0):
                _check_size(stage, "min_tokens", stage.min_tokens)
                found.append(DeviceTopP(stage, survivors))
        elif isinstance(stage, DeviceSafe) and stage.device_safe:
            found.append(stage)
            # What looks at ids may lift one token of those tied with the k-th above another.
            survivors = survivors if isinstance(stage, Local) and stage.local else None
        else:
            raise _refusal(stage, "it does not declare itself device_safe, and has no other form")
    return found


def _top_k(stage: TopK) -> DeviceTopK:
    largest = int(torch.as_tensor(stage.k).max())
    _check_size(stage, "k", largest)
    return DeviceTopK(stage, max(largest, 1))


def _check_size(stage: Processor, name: str, size: int) -> None:
    if size > LARGEST_K:
        raise _refusal(stage, f"{name!r} must be <= {LARGEST_K:,} there")


def _survivors(stage: TopK, before: int | None) -> int | None:
    """How many values are left after *stage*, of *before*; None if any number may be."""
    k = torch.as_tensor(stage.k)
    if bool((k == 0).any()):
        return before
    return int(k.max()) if before is None else min(int(k.max()), before)


def _refusal(part: object, reason: str) -> ValueError:
    return ValueError(f"{part!r}{_CANNOT}{reason}")
