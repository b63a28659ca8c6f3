"""Seconds of a decoder's forwards by width and tokens, measured once."""

import weakref

import attrs
import torch

from ...decoding.cache.slots import Slots
from ...decoding.optional_protocols import AnyDecoder, OffersFeeder
from ...decoding.protocols import Decoder, DecoderShape


@attrs.frozen
class TimedWidth:
    """Seconds of forwards of one width with the fewest and with the most tokens that it is for."""

    fewest: int
    """Tokens of the shortest text that no narrower width fits; *width* where padding takes as long."""

    width: int

    with_fewest: float
    """Seconds of a forward of *fewest* tokens in each row."""

    full: float
    """Seconds of a forward of *width* tokens in each row."""

    skips_padding: bool = attrs.Factory(lambda self: self.fewest < self.width, takes_self=True)
    """Whether padding takes less time than tokens."""

    def __call__(self, tokens: int) -> float:
        """Seconds of a forward of up to *width* tokens in each row, on the line between both."""
        if self.fewest == self.width:
            return self.full
        missing = (self.width - max(tokens, self.fewest)) / (self.width - self.fewest)
        return self.full - missing * (self.full - self.with_fewest)


# Keyed by identity: equal decoders may be different programs.
_timed: dict[int, dict[bool, list[TimedWidth]]] = {}


def time_widths(decoder: AnyDecoder, exact_width: bool = False) -> list[TimedWidth]:
    """
    Seconds of the forwards that score every column, ascending by width, measured once per decoder.

    There are six forwards of each width (:meth:`.Slots.time_forward`), and as many with the fewest tokens
    where padding takes less time than tokens. A forward of combined decoders runs each of them, at its
    smallest width that fits.

    Args:
        decoder: The decoder.

        exact_width: Whether every forward has the widest of these widths.
    """
    if isinstance(decoder, OffersFeeder):
        return _combined(decoder, exact_width)
    known = _timed.get(id(decoder))
    if known is None:
        known = _timed[id(decoder)] = {}
        weakref.finalize(decoder, _timed.pop, id(decoder), None)
    if exact_width not in known:
        known[exact_width] = _time(decoder, exact_width)
    return known[exact_width]


def _time(decoder: Decoder, exact_width: bool) -> list[TimedWidth]:
    slots = Slots.of(decoder)
    ranges = _ranges(decoder.shape, exact_width, slots.skips_padding)
    forwards = sorted({(width, tokens) for fewest, width in ranges for tokens in (fewest, width)})
    with slots.lock, torch.no_grad():
        for forward in forwards:
            slots.time_forward(*forward)
        # They take turns, so that other load affects all; the minimum, as interruptions only add.
        turns = [[slots.time_forward(*forward) for forward in forwards] for _ in range(5)]
    seconds = dict(zip(forwards, map(min, zip(*turns, strict=True)), strict=True))
    return [
        # Fewer tokens that take longer are noise.
        TimedWidth(
            fewest,
            width,
            min(seconds[width, fewest], seconds[width, width]),
            seconds[width, width],
            slots.skips_padding,
        )
        for fewest, width in ranges
    ]


def _combined(decoder: OffersFeeder, exact_width: bool) -> list[TimedWidth]:
    each = [time_widths(one, exact_width) for one in decoder.decoders]

    def together(width: int, tokens: int) -> float:
        return sum(next(timed for timed in one if timed.width >= width)(tokens) for one in each)

    skips = any(timed.skips_padding for one in each for timed in one)
    return [
        TimedWidth(fewest, width, together(width, fewest), together(width, width), skips)
        for fewest, width in _ranges(decoder.shape, exact_width, skips)
    ]


def _ranges(shape: DecoderShape, exact_width: bool, skips_padding: bool) -> list[tuple[int, int]]:
    """The tokens to time of each width that scores every column, ascending: the fewest and the most."""
    widths = [width for width in shape.widths if width <= shape.scored_width]
    if exact_width:
        widths = widths[-1:]
    if not skips_padding:
        return [(width, width) for width in widths]
    return [(narrower + 1, width) for narrower, width in zip([0, *widths], widths, strict=False)]
