"""Forwards that are queued before the host has read the sample that they are fed."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import QueuedSample
from ...decoding.protocols import DecoderShape
from ..kv_cache.spans import smallest_span
from ..tensor_parallel.ranks import Ranks
from .fusion import Fusion

FusedProgram = Callable[..., tuple[Tensor, Tensor]]
"""Inputs of :class:`~.fused_step.FusedStep` before the cache, to sampled ids and logits."""


@runtime_checkable
class QueuesProgram(Protocol):
    """A :data:`FusedProgram` of a device that runs programs in order while the host goes on."""

    def queue(self, ids: Tensor | QueuedSample, rows: Tensor, *others: Tensor) -> QueuedSample:
        """
        Queue the program, and the copy of its sampled ids to the host.

        Args:
            ids: Tokens ``[batch, 1]`` on the host, or an earlier result of this method.

            rows: ``[batch]`` bool; the others get padding.

            others: The inputs after the ids, as in a call.
        """
        ...


class QueuedForwards(abc.ABC):
    """The part of a decoder that offers :class:`~decodekit.decoding.optional_protocols.QueuesForwards`."""

    shape: DecoderShape
    spans: tuple[int, ...]
    ranks: Ranks | None
    _slots: dict[int, Tensor]

    fusion: Fusion | None = None
    """The fused chain and sampler; None if there are none."""

    fused_programs: Mapping[int, FusedProgram] = {}
    """Program of each width that samples; empty if none does."""

    _async_requested: bool = False

    @abc.abstractmethod
    def _sampling_inputs(self, width: int, history: History) -> tuple[Tensor, ...]:
        """The inputs for sampling at *width*, checked."""

    @property
    def async_mode(self) -> bool:
        """
        Whether a generation queues the next forward before the host reads the last sample.

        Off at first; set it to True, which raises ``ValueError`` where it cannot be. It is not saved.
        """
        return self._async_requested and self._reason_against_queueing() is None

    @async_mode.setter
    def async_mode(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"'async_mode' must be True or False: got {value!r}")
        reason = self._reason_against_queueing() if value else None
        if reason is not None:
            raise ValueError(f"'async_mode' needs a decoder that can queue its forwards: {reason}")
        self._async_requested = value

    def queue_and_sample(
        self, ids: Tensor | QueuedSample, cache_pos: Tensor, history: History, rows: Tensor
    ) -> QueuedSample:
        """
        Queue a forward of one column and its sample.

        As :meth:`~decodekit.decoding.optional_protocols.QueuesForwards.queue_and_sample`.

        Raises:
            ValueError: The decoder cannot queue, or the history does not fit. Nothing has been queued.
        """
        reason = self._reason_against_queueing()
        if reason is not None:
            raise ValueError(f"a forward must be one that can be queued: {reason}")
        program: Any = self.fused_programs[1]
        inputs = self._sampling_inputs(1, history)
        end = int(torch.where(rows, cache_pos + 1, 0).max())
        slots = self._slots[smallest_span(self.spans, end, None)]
        queued: QueuedSample = program.queue(ids, rows, cache_pos, *inputs, slots)
        return queued

    def _reason_against_queueing(self) -> str | None:
        if self.fusion is None or 1 not in self.fused_programs:
            return "no program of one column samples; pass processors and sampler to compile_decoder"
        if "ids" in self.fusion.step.reads:
            return "its chain reads the ids of earlier tokens, which the host would have to know"
        if self.ranks is not None:
            return "its ranks compare what they feed, which the host would have to know"
        if not isinstance(self.fused_programs[1], QueuesProgram):
            return "the programs of its target return when the device has finished; NativeTarget's are queued"
        return None
