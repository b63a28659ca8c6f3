"""Fused step: one forward of a model and sampling from its logits, as one module of fixed shapes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...decoding.history import History
from ...decoding.protocols import DecoderShape
from ..kv_cache.buffers import CacheBuffers
from ..kv_cache.writes import CacheWrite
from ..step import DecoderStep, Step
from .device_sampling import DeviceSampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PARTS = ("ids", "length", "prompt")
"""Attributes of a history, in the order in which a step takes them."""


class FusedStep(Step):
    """
    A decoder's step with sampling, ``(ids, cache_pos, *inputs, slots, *cache) -> (sampled, logits)``.

    :meth:`sampling_inputs` makes *inputs* on the host: the attributes of the history that the chain reads,
    and the sampler's noise. Attributes that are not read are left out, so no input is unused.
    """

    def __init__(self, step: DecoderStep, sampling: DeviceSampling, shape: DecoderShape, kind: str):
        """
        Append *sampling* to *step*, whose module is shared.

        Args:
            step: The forward.

            sampling: The chain and the sampler.

            shape: The decoder's shape.

            kind: Prefix of the names of its programs, distinct for each chain.

        Raises:
            ValueError: A stage does not fit the number of rows or the vocabulary.
        """
        super().__init__()
        self.step = step
        self.sampling = sampling
        self.kind = kind
        # One more than there are positions: the last token need not be fed.
        self._capacity, self._vocab = shape.max_length + 1, shape.vocab_size
        example = self._first_tokens(shape.batch_size, 1)
        reads = sampling.history_reads(
            torch.zeros(shape.batch_size, 1, shape.vocab_size, dtype=torch.float32), example
        )
        self.reads: tuple[str, ...] = tuple(part for part in _PARTS if part in reads)
        """Attributes of a history that are inputs."""

        self.num_sampling_inputs = len(self.sampling_inputs(example))
        """Number of tensors that :meth:`sampling_inputs` makes."""

    @property
    def model(self) -> "PreTrainedModel":  # type: ignore[override]  # a module has its place once, in the step
        """The model of the step."""
        return self.step.model

    def sampling_inputs(self, history: History) -> tuple[Tensor, ...]:
        """
        The inputs for sampling, made on the host.

        Args:
            history: The tokens up to each scored column, of all rows, on one path. Its ids are cut or padded
                to one more than the decoder has positions.
        """
        noise = self.sampling.sampler.noise(history, self._vocab)
        ids = history.ids
        if ids.shape[-1] != self._capacity:
            ids = pad(ids[..., : self._capacity], (0, max(0, self._capacity - ids.shape[-1])))
        parts = {"ids": ids, "length": history.length, "prompt": history.prompt}
        return (*(parts[name] for name in self.reads), *noise)

    def forward(self, ids: Tensor, cache_pos: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        """
        Write the tokens' keys and values into the cache, and sample the next tokens.

        Args:
            ids: Tokens, ``[batch, width]`` int64; -1 is padding.

            cache_pos: Position of the first column, ``[batch]`` int64.

            others: The :meth:`sampling_inputs`; the addresses attended to; the cache, written in place.

        Returns:
            Sampled ids of each scored column, ``[batch, width or kept]`` int64, -1 where all tokens are
            masked; and the logits, ``[batch, width or kept, vocab]`` float32.
        """
        count = self.num_sampling_inputs
        inputs, slots, cache = others[:count], others[count], others[count + 1 :]
        sampled, logits, _ = self.score(ids, cache_pos, inputs, slots, cache, self.write)
        return sampled, logits

    def score(
        self,
        ids: Tensor,
        cache_pos: Tensor,
        inputs: Sequence[Tensor],
        slots: Tensor,
        cache: Sequence[Tensor],
        write: CacheWrite,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """:meth:`forward` with any :data:`~..kv_cache.writes.CacheWrite`: ids, logits, written cache."""
        logits, written = self.step.score(ids, cache_pos, slots, cache, write)
        return self.sample(logits, inputs, cache_pos), logits, written

    def sample(self, logits: Tensor, inputs: Sequence[Tensor], placeholder: Tensor) -> Tensor:
        """
        Sample from logits.

        Args:
            logits: ``[batch, columns, vocab]`` float32.

            inputs: The :meth:`sampling_inputs`.

            placeholder: Any integers, in place of the attributes that the chain does not read.

        Returns:
            Ids ``[batch, columns]`` int64.
        """
        # Indices must be int64, also where a device passes integers as int32.
        read = {name: part.long() for name, part in zip(self.reads, inputs, strict=False)}
        history = History(**(dict.fromkeys(_PARTS, placeholder) | read), random_stream=placeholder)
        return self.sampling.sample(logits, history, *inputs[len(self.reads) :])

    def padding(self, width: int, cache: CacheBuffers, span: int) -> tuple[Tensor, ...]:
        """The inputs of a forward of *width* over padding alone: what it is traced with."""
        batch_size = cache.keys[0].shape[0]
        ids = torch.full((batch_size, width), -1)
        start = torch.zeros(batch_size, dtype=torch.int64)
        return ids, start, *self.neutral_inputs(width, batch_size), cache.addresses(span), *cache.tensors

    def neutral_inputs(self, width: int, batch_size: int) -> tuple[Tensor, ...]:
        """Sampling inputs of a forward of *width* whose sampled ids are not used."""
        return self.sampling_inputs(self._first_tokens(batch_size, self.scored(width)))

    def scored(self, width: int) -> int:
        """Number of columns that a forward of *width* scores and samples."""
        return self.step.kept if width > self.step.scored_width else width

    def _first_tokens(self, batch_size: int, columns: int) -> History:
        one = torch.ones(batch_size, dtype=torch.int64)
        ids = torch.zeros(batch_size, 1, self._capacity, dtype=torch.int64)
        return History(ids, one[:, None].repeat(1, columns), one, one)
