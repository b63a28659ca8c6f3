"""
Attention masks from positions and slot addresses.

Masks are additive, ``[batch, 1, width, slots]``: 0 where a column attends to a slot (:mod:`.buffers`),
:func:`hidden` elsewhere, so that a masked slot's weight is exactly 0.
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
    Attention reach of a layer.

    Full attention reaches position 0, a sliding *window* the last *window* positions including its own, and
    chunked attention the beginning of its own *chunk*.
    """

    window: int | None = None
    chunk: int | None = None

    @property
    def span(self) -> int:
        """Length above which the reach is limited; 0 for full attention."""
        return self.window or self.chunk or 0

    def earliest(self, positions: Tensor) -> Tensor:
        """First position that each of *positions*, of any shape, attends to; may be negative."""
        if self.window is not None:
            return positions - self.window + 1
        if self.chunk is not None:
            # Neuron's compiler divides integers in float64. Offset by 0.5 from every boundary, float32 is
            # exact enough up to 2**23 positions, also as a product with the reciprocal.
            begun = (positions.to(torch.float32) + 0.5) / self.chunk
            return begun.floor().to(positions.dtype) * self.chunk
        return torch.zeros_like(positions)

    def sees(self, positions: Tensor, padding: Tensor, slots: Tensor) -> Tensor:
        """
        The slots that each column of one forward attends to.

        Args:
            positions: Position of each column, ``[batch, width]``; ignored for padding.

            padding: True for padding, ``[batch, width]`` bool.

            slots: Addresses that are attended to, ``[slots]``.

        Returns:
            ``[batch, width, slots]`` bool.
        """
        position = positions[..., None]
        seen = (slots <= position) & (slots >= self.earliest(position).clamp(min=0))
        # Padding attends to the spare slot: a softmax over no slot would be NaN.
        return torch.where(padding[..., None], slots == SPARE, seen)

    def tree_sees(
        self, positions: Tensor, written: Tensor, path: Tensor, slots: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """
        The slots that each column of one forward over a tree attends to.

        Args:
            positions: Position of each column, ``[batch, width]``; the tree begins at the first column's.

            written: Address that each column is written to, ``[batch, width]``.

            path: Ancestors of each column, itself included, ``[batch, width, width]`` bool.

            slots: Addresses that are attended to, ``[slots]``.

            dtype: Dtype of an intermediate product.

        Returns:
            ``[batch, width, slots]`` bool.
        """
        earliest = self.earliest(positions[..., None]).clamp(min=0)
        before = (slots < positions[:, :1, None]) & (slots >= earliest)
        near = path & (positions[:, None, :] >= earliest)
        # From columns to slots as a matmul, since compilers support no boolean scatter.
        inside = near.to(dtype) @ (written[..., None] == slots).to(dtype) > 0
        return before | inside


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    # As tensors: a Python float would enter an XLA graph as float64, which Neuron does not support.
    nothing = torch.zeros((), dtype=dtype, device=seen.device)
    lowest = torch.full((), hidden(dtype), dtype=dtype, device=seen.device)
    return torch.where(seen, nothing, lowest)[:, None]


def hidden(dtype: torch.dtype) -> float:
    """
    What is added to the score of a slot that is hidden.

    The lowest number absorbs any score of finite keys, except in float16, where kernels that compute in
    float32 find larger ones. ``-inf`` is not taken everywhere: some compilers make NaN of it.
    """
    return -torch.inf if dtype == torch.float16 else torch.finfo(dtype).min


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
    """The masks of a model: one for all layers, or one per layer type."""

    reaches: dict[str, Reach]

    @classmethod
    def of(cls, model: "PreTrainedModel") -> "MaskPlan":
        """The plan from *model*'s config."""
        return cls.of_config(model.config, type(model).__name__)

    @classmethod
    def of_config(cls, config: Any, name: str) -> "MaskPlan":
        """The plan from the *config* of a model of the class *name*."""
        config = config.get_text_config(decoder=True)
        # attention_layers is GPT-Neo's.
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
        """Length above which every limited layer's reach is limited; 0 if all have full attention."""
        return max(reach.span for reach in self.reaches.values())

    def masks(
        self, positions: Tensor, padding: Tensor, slots: Tensor, dtype: torch.dtype
    ) -> Tensor | dict[str, Tensor]:
        """
        The additive masks of one forward; a dictionary by layer type if there are several.

        Arguments as of :meth:`Reach.sees`; *dtype* is that of the attention scores.
        """
        return _bare_if_one(
            {
                name: _additive(reach.sees(positions, padding, slots), dtype)
                for name, reach in self.reaches.items()
            }
        )

    def tree_masks(
        self, positions: Tensor, written: Tensor, path: Tensor, slots: Tensor, dtype: torch.dtype
    ) -> Tensor | dict[str, Tensor]:
        """As :meth:`masks`, of a forward over a tree; arguments as of :meth:`Reach.tree_sees`."""
        return _bare_if_one(
            {
                name: _additive(reach.tree_sees(positions, written, path, slots, dtype), dtype)
                for name, reach in self.reaches.items()
            }
        )


def _bare_if_one(masks: dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
    # Not every model takes a dictionary, but every model takes a tensor.
    return masks if len(masks) > 1 else next(iter(masks.values()))
