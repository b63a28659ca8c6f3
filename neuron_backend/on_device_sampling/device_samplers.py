"""Device variants of Greedy and Sample, without argmax reductions and with noise as an input."""

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
    """:class:`~decodekit.decoding.Greedy`: the lowest id among the largest logits."""

    host: Greedy

    def noise(self, history: History, vocab: int) -> tuple[Tensor, ...]:
        """No noise."""
        return ()

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``."""
        return first_largest(logits)


@attrs.frozen(eq=False)
class DeviceSample:
    """
    :class:`~decodekit.decoding.Sample` with its noise as an input.

    Computes in float32 where the host uses float64: the result may differ if the two best scores are within
    rounding of each other.
    """

    host: Sample

    def noise(self, history: History, vocab: int) -> tuple[Tensor, ...]:
        """The host's noise, for blocks and for tokens within a block, float32."""
        for_blocks, for_tokens = self.host.noise(history, vocab)
        return for_blocks.float(), for_tokens.float()

    def __call__(self, logits: Tensor, for_blocks: Tensor, for_tokens: Tensor) -> Tensor:
        """
        Sample in each column.

        Args:
            logits: ``[batch, width, vocab]``.

            for_blocks: ``[batch, width, blocks]``.

            for_tokens: ``[batch, width, size]``.

        Returns:
            Ids ``[batch, width]``.
        """
        vocab = logits.shape[-1]
        size = block_size(vocab)
        peak = logits.amax(dim=-1, keepdim=True)
        # Noise that is added to large logits would be rounded off. NaN is no peak either.
        logits = logits - torch.where(peak > -torch.inf, peak, 0)
        filled = pad(logits, (0, -vocab % size), value=-torch.inf)
        blocks = filled.reshape(*logits.shape[:-1], -1, size)
        block = first_largest(_log_masses(blocks) + for_blocks)
        index = block[..., None, None].expand(*block.shape, 1, size)
        offset = first_largest(blocks.gather(-2, index).squeeze(-2) + for_tokens)
        return block * size + offset


def first_largest(values: Tensor) -> Tensor:
    """
    Index of the first of the largest along the last dimension: argmax as two single-operand reductions.

    If no value equals the largest, which is so for NaN, the last index: always a valid index.
    """
    last = values.shape[-1] - 1
    largest = values.amax(dim=-1, keepdim=True)
    indices = torch.arange(last + 1, device=values.device)
    return torch.where(values == largest, indices, last).amin(dim=-1)


def _log_masses(blocks: Tensor) -> Tensor:
    """Log-sum-exp of each block: ``[..., blocks, size]`` to ``[..., blocks]``, ``-inf`` for empty blocks."""
    peak = blocks.amax(dim=-1, keepdim=True)
    mass = (blocks - peak).exp().sum(dim=-1)
    peak = peak.squeeze(-1)
    # The mass of a block that is all -inf is NaN.
    return torch.where(peak > -torch.inf, mass.log() + peak, -torch.inf)
