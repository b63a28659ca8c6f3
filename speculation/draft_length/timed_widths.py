"""Seconds of a decoder's forwards by width and tokens, measured once."""

import math
import weakref
from collections.abc import Callable

import attrs
import torch

from ...decoding.cache.slots import Slots
from ...decoding.optional_protocols import AnyDecoder, OffersFeeder, does_skip_padding
from ...decoding.protocols import Decoder, DecoderShape
from .learned_seconds import LEAST


@attrs.frozen
class WidthSeconds:
    """Seconds of a forward of one width, on a line between the fewest and the most tokens that it is for."""

    fewest: int
    """Tokens of the shortest text that no narrower width fits."""

    width: int

    with_fewest: float
    """Seconds of a forward of so many tokens; :attr:`full` where padding takes as long as tokens."""

    full: float
    """Seconds of a forward of *width* tokens."""

    def __call__(self, tokens: int) -> float:
        """Seconds of a forward of *tokens*, *fewest* to *width*, in each row."""
        missing = (self.width - tokens) / max(self.width - self.fewest, 1)
        return self.full - missing * (self.full - self.with_fewest)


# Keyed by identity: equal decoders may be different programs.
_timed: dict[int, list[WidthSeconds]] = {}


def time_widths(decoder: AnyDecoder) -> list[WidthSeconds]:
    """
    Seconds of the forwards that score every column, ascending by width, measured once per decoder.

    There are six forwards of each width (:meth:`.Slots.time_forward`), and as many with the fewest tokens
    where padding takes less time than tokens. A forward of combined decoders runs each of them, at its
    smallest width that fits.
    """
    if isinstance(decoder, OffersFeeder):
        return _combined(decoder)
    timed = _timed.get(id(decoder))
    if timed is None:
        timed = _timed[id(decoder)] = _time(decoder)
        weakref.finalize(decoder, _timed.pop, id(decoder), None)
    return timed


def _time(decoder: Decoder) -> list[WidthSeconds]:
    slots, ranges = Slots.of(decoder), _scored_ranges(decoder.shape)
    forwards = [(width, width) for _, width in ranges]
    if does_skip_padding(decoder):
        forwards += [(width, fewest) for fewest, width in ranges if fewest < width]
    with slots.lock, torch.no_grad():
        for width, tokens in forwards:
            slots.time_forward(width, tokens)
        # They take turns, so that other load affects all; the minimum, as interruptions only add.
        turns = [[slots.time_forward(*forward) for forward in forwards] for _ in range(5)]
    seconds = dict(zip(forwards, map(min, zip(*turns, strict=True)), strict=True))
    return [_line(fewest, width, lambda *forward: seconds.get(forward, math.inf)) for fewest, width in ranges]


def _combined(decoder: OffersFeeder) -> list[WidthSeconds]:
    each = [time_widths(one) for one in decoder.decoders]

    def together(width: int, tokens: int) -> float:
        lines = [next(line for line in timed if line.width >= width) for timed in each]
        return sum(line(max(tokens, line.fewest)) for line in lines)

    return [_line(fewest, width, together) for fewest, width in _scored_ranges(decoder.shape)]


def _line(fewest: int, width: int, seconds: Callable[[int, int], float]) -> WidthSeconds:
    """From the *seconds* of a width and tokens; more for fewer tokens are noise, or not known."""
    full = max(seconds(width, width), LEAST)
    return WidthSeconds(fewest, width, min(max(seconds(width, fewest), LEAST), full), full)


def _scored_ranges(shape: DecoderShape) -> list[tuple[int, int]]:
    """The fewest and the most tokens of each width that scores every column, ascending."""
    widths = [width for width in shape.widths if width <= shape.scored_width]
    return [(narrower + 1, width) for narrower, width in zip([0, *widths], widths, strict=False)]
