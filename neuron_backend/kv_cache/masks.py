"""
Attention masks made from positions.

A mask says of each slot that a forward attends to, by its address (:mod:`.buffers`), whether a
column may look. It is additive, ``[batch, 1, width, slots]``: 0 where it may, the lowest number of
its dtype elsewhere. That absorbs any finite score, so a hidden slot weighs exactly nothing.
"""

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from ..models.unsupported import UnsupportedArchitecture
from .buffers import SPARE

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@attrs.frozen
class Reach:
    """
    How far back a layer looks.

    Without a limit: to position 0. Under a *window*: to the last *window* positions, its own
    among them. In a *chunk*: to the beginning of its own chunk.
    """

    window: int | None = None
    chunk: int | None = None

    @property
    def span(self) -> int:
        """Positions after which the limit shows; 0 without one."""
        return self.window or self.chunk or 0

    def earliest(self, positions: Tensor) -> Tensor:
        """The first position that each of *positions*, of any shape, sees."""
        if self.window is not None:
            return positions - self.window + 1
        if self.chunk is not None:
            # Neuron's compiler divides integers in float64. Half a position off every boundary, float32
            # is exact enough up to 2**23 positions, by a reciprocal as well.
            begun = (positions.to(torch.float32) + 0.5) / self.chunk
            return begun.floor().to(positions.dtype) * self.chunk
        return torch.zeros_like(positions)

    def mask(self, positions: Tensor, padding: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """
        The additive mask of one forward.

        Args:
            positions: Position of each column, ``[batch, width]``; anything under padding.

            padding: Where there is no token, ``[batch, width]`` bool.

            slots: The addresses that are attended to, ``[slots]``.

            dtype: The attention scores' dtype.

        Returns:
            ``[batch, 1, width, slots]``.
        """
        position = positions[..., None]
        seen = (slots <= position) & (slots >= self.earliest(position).clamp(min=0))
        # Padding looks at the spare slot alone: a softmax over nothing would be NaN.
        return _additive(torch.where(padding[..., None], slots == SPARE, seen), dtype)

    def tree_mask(
        self, positions: Tensor, written: Tensor, path: Tensor, slots: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """
        The additive mask of one forward over a tree.

        Args:
            positions: Position of each column, ``[batch, width]``; the tree begins at the first one's.

            written: The address that each column is written to, ``[batch, width]``.

            path: The columns on the way to each, itself included, ``[batch, width, width]`` bool.

            slots: The addresses that are attended to, ``[slots]``.

            dtype: The attention scores' dtype.

        Returns:
            ``[batch, 1, width, slots]``.
        """
        earliest = self.earliest(positions[..., None]).clamp(min=0)
        before = (slots < positions[:, :1, None]) & (slots >= earliest)
        near = path & (positions[:, None, :] >= earliest)
        # From columns to their slots: as a product, since compilers take no scatter of booleans.
        inside = near.to(dtype) @ (written[..., None] == slots).to(dtype) > 0
        return _additive(before | inside, dtype)


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    # From tensors: a Python float would enter an XLA graph as float64, which Neuron has not.
    nothing = torch.zeros((), dtype=dtype, device=seen.device)
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=seen.device)
    return torch.where(seen, nothing, lowest)[:, None]


def _reach(layer_type: str, config: Any, architecture: str) -> Reach:
    if layer_type in ("full_attention", "global"):
        return Reach()
    if layer_type == "local":
        return Reach(window=config.window_size)
    if layer_type == "sliding_attention":
        return Reach(window=config.sliding_window)
    if layer_type == "chunked_attention":
        return Reach(chunk=config.attention_chunk_size)
    raise UnsupportedArchitecture(
        architecture,
        f"layers of type {layer_type!r} are not known to be addressed by position; "
        "recurrent or convolutional state cannot be rewound",
    )


@attrs.frozen
class MaskPlan:
    """The masks that a model asks for: one for all layers, or one for each type of layer."""

    reaches: dict[str, Reach]

    @classmethod
    def of(cls, model: "PreTrainedModel") -> "MaskPlan":
        """Read the plan from the config of a *model*."""
        config: Any = model.config.get_text_config(decoder=True)
        name = type(model).__name__
        # The second is GPT-Neo's.
        types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
        if types:
            return cls({kind: _reach(kind, config, name) for kind in sorted(set(types))})
        if getattr(config, "sliding_window", None) is not None:
            return cls({"sliding_attention": Reach(window=config.sliding_window)})
        if getattr(config, "attention_chunk_size", None) is not None:
            return cls({"chunked_attention": Reach(chunk=config.attention_chunk_size)})
        return cls({"full_attention": Reach()})

    @property
    def span(self) -> int:
        """Positions after which every layer's limit shows."""
        return max(reach.span for reach in self.reaches.values())

    def masks(
        self, positions: Tensor, padding: Tensor, slots: Tensor, dtype: torch.dtype
    ) -> Tensor | dict[str, Tensor]:
        """As :meth:`Reach.mask`; a dictionary by layer type where the layers differ."""
        return _bare_if_one(
            {name: reach.mask(positions, padding, slots, dtype) for name, reach in self.reaches.items()}
        )

    def tree_masks(
        self, positions: Tensor, written: Tensor, path: Tensor, slots: Tensor, dtype: torch.dtype
    ) -> Tensor | dict[str, Tensor]:
        """As :meth:`Reach.tree_mask`; a dictionary by layer type where the layers differ."""
        return _bare_if_one(
            {
                name: reach.tree_mask(positions, written, path, slots, dtype)
                for name, reach in self.reaches.items()
            }
        )


def _bare_if_one(masks: dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
    # A single mask goes in bare: every model takes that, not every model takes a dictionary.
    return masks if len(masks) > 1 else next(iter(masks.values()))
