"""Ensembles of decoders."""

from collections.abc import Iterable
from typing import Any

import attrs
import torch
from torch import Tensor

from ..cache.slots import feeder_of
from ..engine.compatibility import check_decoder
from ..optional_protocols import (
    AnyDecoder,
    CombinesByColumn,
    decoders_of,
    is_bit_exact,
    runs_in_lockstep,
)
from ..protocols import Decoder, DecoderShape
from ..sampling_placement import part_name
from .combinations import Combine, MeanLogProbs
from .combined_feeder import CombinedFeeder


def _as_tuple(decoders: Any) -> Any:
    return tuple(decoders) if isinstance(decoders, Iterable) else decoders


@attrs.frozen(eq=False, repr=False)
class Combined:
    """
    Several decoders as one, by a function of their logits.

    A generator takes it in place of a decoder; chains, samplers, stops and drafters apply to the combined
    logits. The decoders must have the same vocabulary, token for token; ids are not translated.

    >>> from decodekit.decoding import Generator, MaxNewTokens
    >>> from decodekit.testing import ScriptedDecoder
    >>> import torch
    >>> one, other = (ScriptedDecoder(torch.eye(5).roll(by, 0), batch_size=2) for by in (1, 2))
    >>> Combined([one, other])
    <Combined of 2 decoders by MeanLogProbs: 2 rows of 64 positions>
    >>> len(Generator(Combined([one, other]), stop=MaxNewTokens(3))([1]).ids[0])
    3
    """

    members: tuple[AnyDecoder, ...] = attrs.field(converter=_as_tuple)
    """Two or more, each with a cache of its own; rows, positions and scored columns are those all have."""

    combine: Combine = attrs.field(factory=MeanLogProbs)
    """
    :class:`~.combinations.MeanLogProbs`, :class:`~.combinations.MeanProbs`,
    :class:`~.combinations.Contrast`, or any function of their logits, ``[rows, columns, vocab]`` each, to
    logits of the same shape. It must treat each column by itself, and not modify what it is given.
    """

    shape: DecoderShape = attrs.field(init=False)
    """What all of them have; :attr:`~..protocols.DecoderShape.widths` are those of any."""

    _feeder: CombinedFeeder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Check that the decoders fit together, and what *combine* returns."""
        _check_members(self.members)
        shapes = [one.shape for one in self.members]
        scored = min(shape.scored_width for shape in shapes)
        shape = DecoderShape(
            batch_size=min(shape.batch_size for shape in shapes),
            max_length=min(shape.max_length for shape in shapes),
            vocab_size=shapes[0].vocab_size,
            widths=sorted({width for shape in shapes for width in shape.widths}),
            scored_width=scored,
        )
        object.__setattr__(self, "shape", shape)
        _check_combine(self.combine, len(self.members), shape.vocab_size)
        feeder = CombinedFeeder([feeder_of(one) for one in self.members], shape, self.combine)
        object.__setattr__(self, "_feeder", feeder)

    @property
    def decoders(self) -> tuple[Decoder, ...]:
        """See :class:`~..optional_protocols.OffersFeeder`."""
        return tuple(decoder for one in self.members for decoder in decoders_of(one))

    @property
    def bit_exact(self) -> bool:
        """See :class:`~..optional_protocols.BitExact`; False for a function that does not declare it."""
        declared = isinstance(self.combine, CombinesByColumn) and self.combine.by_column
        return declared and all(map(is_bit_exact, self.members))

    @property
    def in_lockstep(self) -> bool:
        """See :class:`~..optional_protocols.RunsInLockstep`."""
        return any(map(runs_in_lockstep, self.members))

    def feeder(self) -> CombinedFeeder:
        """See :class:`~..optional_protocols.OffersFeeder`."""
        return self._feeder

    def advise_width(self, columns: int) -> str:
        """See :class:`~..optional_protocols.AdvisesWidth`."""
        return (
            f"Compile each of the combined decoders with {columns} among its widths; early_exit() takes "
            "'widths' and 'scored_width' too"
        )

    def __repr__(self) -> str:
        """The number of decoders, how they are combined, and the shape."""
        how, shape = part_name(self.combine), self.shape
        rows = "1 row" if shape.batch_size == 1 else f"{shape.batch_size} rows"
        return f"<Combined of {len(self.members)} decoders by {how}: {rows} of {shape.max_length} positions>"


def _check_members(members: Any) -> None:
    if not isinstance(members, tuple):
        raise TypeError(f"'members' must be several decoders: got {members!r}")
    for one in members:
        check_decoder(one)
    if len(members) < 2:
        raise ValueError(f"'members' must be 2 decoders or more: got {len(members)}")
    sizes = [one.shape.vocab_size for one in members]
    if len(set(sizes)) > 1:
        raise ValueError(f"the decoders must have the same vocabulary: got the sizes {sizes}")
    decoders = [id(decoder) for one in members for decoder in decoders_of(one)]
    if len(set(decoders)) < len(decoders):
        raise ValueError(
            "each decoder must have a cache of its own, since a forward invalidates the logits of the one "
            "before it: got the same decoder twice. Compile another, which may share the weights"
        )


def _check_combine(combine: Any, decoders: int, vocab: int) -> None:
    if isinstance(combine, type) or not callable(combine):
        raise TypeError(f"'combine' must be a function of the logits: got {combine!r}")
    # With as many decoders as there are, before anything is fed.
    logits = [torch.zeros(1, 1, vocab) for _ in range(decoders)]
    found = combine(logits)
    if not isinstance(found, Tensor) or found.shape != logits[0].shape:
        got = list(found.shape) if isinstance(found, Tensor) else found
        shape = list(logits[0].shape)
        raise ValueError(f"'combine' must return logits of the shape {shape}, as it is given: got {got!r}")
