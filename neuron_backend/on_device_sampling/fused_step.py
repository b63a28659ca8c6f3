"""One forward of a model, and the choice from its logits, as one module of fixed shapes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...decoding.history import History
from ...decoding.protocols import DecoderShape
from ..kv_cache.buffers import CacheBuffers, CacheWrite, write_in_place
from ..step import DecoderStep, Step
from .device_sampling import DeviceSampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PARTS = ("ids", "length", "prompt")
"""Of a history, in the order in which a step takes them."""


class FusedStep(Step):
    """
    A decoder's step with a choice behind it.

    As ``(ids, cache_pos, *given, slots, *cache) -> (chosen, logits)``, pure and of fixed shapes.

    What is *given* beside the tokens, :meth:`given` makes on the host: what the chain looks at of
    the history, and the numbers that the sampler draws with. A chain that looks at nothing
    gets nothing, so no input is unused.
    """

    def __init__(self, step: DecoderStep, choice: DeviceSampling, shape: DecoderShape, kind: str):
        """
        Put *choice* behind *step*, whose module is shared.

        Args:
            step: The forward.

            choice: The chain and the sampler.

            shape: Of the decoder.

            kind: What the names of its programs begin with. Those of another chain have another.

        Raises:
            ValueError: A stage does not fit the number of rows or the vocabulary.
        """
        super().__init__()
        self.step = step
        self.sampling = choice
        self.kind = kind
        # One more than there are positions: the last token need not be fed.
        self._capacity, self._vocab = shape.max_length + 1, shape.vocab_size
        anything = self._first_tokens(shape.batch_size, 1)
        reads = choice.history_reads(torch.zeros(shape.batch_size, 1, shape.vocab_size), anything)
        self.reads: tuple[str, ...] = tuple(part for part in _PARTS if part in reads)
        """What is given of a history."""

        self.num_sampling_inputs = len(self.sampling_inputs(anything))
        """How many tensors :meth:`given` makes."""

    @property
    def model(self) -> "PreTrainedModel":  # type: ignore[override]  # a module has its place once, in the step
        """The model of the step."""
        return self.step.model

    def sampling_inputs(self, history: History) -> tuple[Tensor, ...]:
        """
        What goes in beside the tokens, made on the host.

        Args:
            history: The tokens before each scored column, of all rows, on one path. Its ids are cut,
                or filled up, to one more than the decoder has positions.
        """
        noise = self.sampling.sampler.noise(history, self._vocab)
        ids = history.ids
        if ids.shape[-1] != self._capacity:
            ids = pad(ids[..., : self._capacity], (0, max(0, self._capacity - ids.shape[-1])))
        parts = {"ids": ids, "length": history.length, "prompt": history.prompt}
        return (*(parts[name] for name in self.reads), *noise)

    def forward(self, ids: Tensor, cache_pos: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        """
        Write the tokens into the cache, score what may follow them, and choose from that.

        Args:
            ids: Tokens, ``[batch, width]`` int64; -1 is padding.

            cache_pos: Position of the first column, ``[batch]`` int64.

            others: What :meth:`given` made; the addresses attended to; the cache, written in place.

        Returns:
            The choice in each scored column, ``[batch, width or kept]`` int64, -1 where there is none;
            and the logits that it was made from, ``[batch, width or kept, vocab]`` float32.
        """
        count = self.num_sampling_inputs
        given, slots, cache = others[:count], others[count], others[count + 1 :]
        chosen, logits, _ = self.score(ids, cache_pos, given, slots, cache, write_in_place)
        return chosen, logits

    def score(
        self,
        ids: Tensor,
        cache_pos: Tensor,
        given: Sequence[Tensor],
        slots: Tensor,
        cache: Sequence[Tensor],
        write: CacheWrite,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """The same with any :data:`~..kv_cache.buffers.CacheWrite`: choice, logits, and the cache written to."""
        logits, written = self.step.score(ids, cache_pos, slots, cache, write)
        return self.sample(logits, given, cache_pos), logits, written

    def sample(self, logits: Tensor, given: Sequence[Tensor], anything: Tensor) -> Tensor:
        """
        Choose from scores.

        Args:
            logits: ``[batch, columns, vocab]`` float32.

            given: What :meth:`given` made.

            anything: Integers that stand for what the chain does not look at.

        Returns:
            ``[batch, columns]`` int64.
        """
        # An index is int64, also where a device's integers come in as int32.
        read = {name: part.long() for name, part in zip(self.reads, given, strict=False)}
        history = History(**(dict.fromkeys(_PARTS, anything) | read), random_stream=anything)
        return self.sampling.sample(logits, history, *given[len(self.reads) :])

    def padding(self, width: int, cache: CacheBuffers, span: int) -> tuple[Tensor, ...]:
        """The inputs of a forward of *width* over padding alone: what it is traced with."""
        batch_size = cache.keys[0].shape[0]
        ids = torch.full((batch_size, width), -1)
        start = torch.zeros(batch_size, dtype=torch.int64)
        return ids, start, *self.neutral_inputs(width, batch_size), cache.addresses(span), *cache.tensors

    def neutral_inputs(self, width: int, batch_size: int) -> tuple[Tensor, ...]:
        """What is given to a forward of *width* from which nobody wants a choice."""
        return self.sampling_inputs(self._first_tokens(batch_size, self.scored(width)))

    def scored(self, width: int) -> int:
        """How many columns of a forward of *width* are scored, and chosen from."""
        return self.step.kept if width > self.step.scored_width else width

    def _first_tokens(self, batch_size: int, columns: int) -> History:
        one = torch.ones(batch_size, dtype=torch.int64)
        ids = torch.zeros(batch_size, 1, self._capacity, dtype=torch.int64)
        return History(ids, one[:, None].repeat(1, columns), one, one)
