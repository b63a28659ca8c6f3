"""Seconds of a decoder's forwards by width, measured once."""

import weakref

import torch

from ...decoding.cache.slots import Slots
from ...decoding.optional_protocols import AnyDecoder, OffersFeeder

# Keyed by identity: equal decoders may be different programs.
_timed: dict[int, dict[int, float]] = {}


def time_widths(decoder: AnyDecoder) -> dict[int, float]:
    """
    Seconds of a forward for each width that scores every column, measured once per decoder.

    There are six forwards of each width (:meth:`.Slots.time_forward`). A forward of combined decoders runs
    each of them, at its smallest width that fits.
    """
    if isinstance(decoder, OffersFeeder):
        shape, each = decoder.shape, [time_widths(one) for one in decoder.decoders]
        return {
            width: sum(seconds[min(wide for wide in seconds if wide >= width)] for seconds in each)
            for width in shape.widths
            if width <= shape.scored_width
        }
    seconds = _timed.get(id(decoder))
    if seconds is None:
        slots, shape = Slots.of(decoder), decoder.shape
        widths = [width for width in shape.widths if width <= shape.scored_width]
        with slots.lock, torch.no_grad():
            for width in widths:
                slots.time_forward(width)
            # The widths take turns, so that other load affects all; the minimum, as interruptions only add.
            turns = [[slots.time_forward(width) for width in widths] for _ in range(5)]
        seconds = dict(zip(widths, map(min, zip(*turns, strict=True)), strict=True))
        _timed[id(decoder)] = seconds
        weakref.finalize(decoder, _timed.pop, id(decoder), None)
    return seconds
