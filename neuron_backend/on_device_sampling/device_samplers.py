"""Greedy choice and sampling without a reduction of several operands and without random numbers."""

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...decoding.history import History
from ...decoding.sampling.greedy import Greedy
from ...decoding.sampling.noise import block_size
from ...decoding.sampling.sample import Sample


@attrs.frozen(eq=False)
class DeviceGreedy:
    """:class:`~decodekit.decoding.Greedy`: of the largest logits, the lowest id."""

    host: Greedy

    def noise(self, history: History, vocab: int) -> tuple[Tensor, ...]:
        """None is needed."""
        return ()

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``."""
        return first_largest(logits)


@attrs.frozen(eq=False)
class DeviceSample:
    """
    :class:`~decodekit.decoding.Sample` with its noise as an input.

    Everything is float32 here and float64 there: another token is drawn where the two best are
    closer than rounding.
    """

    host: Sample

    def noise(self, history: History, vocab: int) -> tuple[Tensor, ...]:
        """The host's numbers, for blocks and for places in a block, float32."""
        for_blocks, for_tokens = self.host.noise(history, vocab)
        return for_blocks.float(), for_tokens.float()

    def __call__(self, logits: Tensor, for_blocks: Tensor, for_tokens: Tensor) -> Tensor:
        """
        Draw in each column.

        Args:
            logits: ``[batch, width, vocab]``.

            for_blocks: ``[batch, width, blocks]``.

            for_tokens: ``[batch, width, size]``.

        Returns:
            Ids ``[batch, width]``.
        """
        vocab = logits.shape[-1]
        size = block_size(vocab)
        filled = pad(logits, (0, -vocab % size), value=-torch.inf)
        blocks = filled.reshape(*logits.shape[:-1], -1, size)
        block = first_largest(_log_masses(blocks) + for_blocks)
        chosen = block[..., None, None].expand(*block.shape, 1, size)
        place = first_largest(blocks.gather(-2, chosen).squeeze(-2) + for_tokens)
        return block * size + place


def first_largest(values: Tensor) -> Tensor:
    """
    Where the first of the largest stands along the last dimension: an argmax in two reductions.

    The last place where nothing equals the largest, which is so of NaN: an index into *values*
    in any case.
    """
    last = values.shape[-1] - 1
    largest = values.amax(dim=-1, keepdim=True)
    places = torch.arange(last + 1, device=values.device)
    return torch.where(values == largest, places, last).amin(dim=-1)


def _log_masses(blocks: Tensor) -> Tensor:
    """``[..., blocks, size]`` to ``[..., blocks]``, ``-inf`` where a block is."""
    peak = blocks.amax(dim=-1, keepdim=True)
    mass = (blocks - peak).exp().sum(dim=-1)
    peak = peak.squeeze(-1)
    # Of a block that is all -inf, the mass is NaN.
    return torch.where(peak > -torch.inf, mass.log() + peak, -torch.inf)
