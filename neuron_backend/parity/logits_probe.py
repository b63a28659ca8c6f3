"""
Comparison of logits with the stock model, made whenever a decoder is constructed.

A model may depend on something that the decoder's cache, masks or positions do not cover: its own positions,
an ALiBi bias, a compressed cache. Its logits then differ, and it is refused by name rather than run with
wrong results.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from ...decoding.protocols import DecoderShape
from ..models.unsupported import UnsupportedArchitecture
from ..step import supports_logits_to_keep

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_COMPARED = 48
_DISTINCT_ROWS = 3
_MARGIN = 8
_SHORTEST = 24

# Largest difference relative to the largest logit. Rounding is two orders of magnitude smaller in float32 and
# float64. In half precision, rounding may also change a mixture of experts' routing, so only gross errors are
# detected, such as wrong weights; architectures are compared in float32 if that fits (static_decoder.py).
TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 1e-4,
    torch.float16: 0.3,
    torch.bfloat16: 0.3,
}

Forward = Callable[[Tensor, Tensor], Tensor]


@attrs.frozen
class Chunk:
    """One forward of the probe."""

    first: int
    """First column of the timeline that it covers."""

    width: int

    kind: str = "tokens"
    """
    ``"wrong"`` feeds other ids, which are overwritten later; ``"idle"`` feeds padding only; ``"half"`` feeds
    padding, and the tokens of the second half.
    """


@attrs.frozen(eq=False)
class Probe:
    """
    Rows of random ids of different lengths, and the stock model's logits for them.

    Rows are right-aligned on a timeline that begins with padding. They are longer than any attention window
    smaller than max_length; a larger window is equivalent to full attention.
    """

    architecture: str
    shape: DecoderShape
    timeline: Tensor
    """``[batch, columns]`` int64, -1 before the beginning of a row."""

    reference: Tensor
    """``[batch, columns compared, vocab]``: the stock model's logits at the end of the timeline."""

    tolerance: float

    @classmethod
    def of(cls, model: "PreTrainedModel", shape: DecoderShape, span: int) -> "Probe":
        """
        Draw the rows and score each separately with *model*, without a cache.

        Args:
            model: The stock model, in evaluation mode.

            shape: Shape of the decoder to be compared.

            span: The longest attention window; 0 for none.
        """
        closing = span if span < shape.max_length else 0
        length = min(shape.max_length, max(closing, shape.widths[-1], _SHORTEST - _MARGIN) + _MARGIN)
        rows = _random_rows(shape, length)
        compared = min(_COMPARED, length)
        distinct = torch.stack([_stock_logits(model, row, compared) for row in rows[:_DISTINCT_ROWS]])
        reference = distinct[torch.arange(shape.batch_size) % _DISTINCT_ROWS]
        return cls(
            architecture=type(model).__name__,
            shape=shape,
            timeline=torch.nn.functional.pad(rows, (shape.widths[-1], 0), value=-1),
            reference=reference,
            tolerance=TOLERANCE[model.dtype] * reference.abs().max().item(),
        )

    def check(self, forward: Forward, whose: str) -> None:
        """
        Feed *forward* in chunks and compare logits. The cache is overwritten.

        Raises:
            UnsupportedArchitecture: The model failed, or its logits differ.
        """
        for chunk in self._chunks():
            ids, cache_pos = self._inputs(chunk)
            try:
                logits = forward(ids, cache_pos)
            except Exception as error:
                raise UnsupportedArchitecture(
                    self.architecture,
                    f"{whose} failed over a cache that is addressed by position: {error!r}",
                ) from error
            if chunk.kind in ("tokens", "half"):
                self._compare(logits, ids, chunk, whose)

    def _chunks(self) -> Iterator[Chunk]:
        """Wrong ids, prefill over them, padding only, wrong ids again, and rewinds at every width."""
        columns, widths = self.timeline.shape[1], self.shape.widths
        scored = [width for width in widths if width <= self.shape.scored_width] or [widths[0]]
        wrong = Chunk(columns - scored[-1], scored[-1], "wrong")
        yield wrong
        cover = _cover(columns - widths[-1], widths)
        begin = columns - sum(cover)
        for width in cover:
            yield Chunk(begin, width)
            begin += width
        yield Chunk(0, widths[0], "idle")
        yield wrong
        for width in reversed(widths):
            yield Chunk(columns - width, width)
            if width > 1:
                yield Chunk(columns - width, width, "half")

    def _inputs(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        ids = self.timeline[:, chunk.first : chunk.first + chunk.width].clone()
        if chunk.kind == "wrong":
            ids = torch.where(ids < 0, ids, (ids + 1) % self.shape.vocab_size)
        if chunk.kind == "idle":
            ids.fill_(-1)
        if chunk.kind == "half":
            ids[:, : chunk.width // 2] = -1
        return ids, chunk.first - (self.timeline < 0).sum(dim=1)

    def _compare(self, logits: Tensor, ids: Tensor, chunk: Chunk, whose: str) -> None:
        scored = logits.shape[1]
        end = chunk.first + chunk.width - self.timeline.shape[1] + self.reference.shape[1]
        columns = torch.arange(end - scored, end)
        kept = columns >= 0
        expected = self.reference[:, columns[kept]]
        difference = (logits[:, kept] - expected).abs().amax(dim=-1)
        worst = difference[ids[:, -scored:][:, kept] >= 0].flatten()
        # Also true for NaN on either side.
        if not bool((worst <= self.tolerance).all()):
            raise UnsupportedArchitecture(
                self.architecture,
                f"{whose} differs from the stock model by {worst.max().item():.3g} at width {chunk.width}, "
                f"more than rounding explains ({self.tolerance:.3g})",
            )


def _cover(length: int, widths: tuple[int, ...]) -> list[int]:
    """Widths that add up to *length*, wide ones first; any remainder comes before them, padded."""
    chunks = []
    for width in reversed(widths):
        chunks += [width] * (length // width)
        length %= width
    return [widths[0], *chunks] if length else chunks


def _random_rows(shape: DecoderShape, length: int) -> Tensor:
    """``[batch, length]``: three different rows, repeated, each one token shorter than the one before."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(shape.vocab_size, (_DISTINCT_ROWS, length), generator=generator)
    for index in range(_DISTINCT_ROWS):
        rows[index, : min(index + 1, length - 1)] = -1
    return rows[torch.arange(shape.batch_size) % _DISTINCT_ROWS]


def _stock_logits(model: "PreTrainedModel", row: Tensor, compared: int) -> Tensor:
    """The last logits of one row, ``[compared, vocab]``, zeros before its beginning."""
    ids = row[row >= 0][None].to(model.device)
    keep = {"logits_to_keep": compared} if supports_logits_to_keep(model) else {}
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **keep)
    logits: Tensor = output.logits[0, -compared:].to("cpu", torch.float32)
    return torch.nn.functional.pad(logits, (0, 0, compared - logits.shape[0], 0))
