"""Random attention of a few columns over a cache."""

import random

import torch
from torch import Tensor
from torch.nn.functional import pad

from decodekit.neuron_backend.kv_cache.buffers import SPARE
from decodekit.neuron_backend.kv_cache.masks import Reach, hidden

from .case import Case
from .driver import Call, Operation
from .products import normal

# Of float32 sums, of a result's own dtype, and of exponentials, which have 20 bits; with values up to 1.
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}

# In attention.h.
PIECE = 64


def attention(dice: random.Random, dtype: torch.dtype) -> Case:
    """Columns over a cache."""
    batch, groups, sharing = dice.randint(1, 4), dice.randint(1, 3), dice.choice([1, 2, 3, 4, 7])
    width = dice.randint(1, dice.choice([2, 6, 64 // batch]))
    slots = dice.choice([dice.randint(1, 10), dice.randint(1, 200), PIECE * dice.randint(1, 5), 700])
    key_dim, value_dim = dim(dice), dim(dice)
    heads, scale = groups * sharing, key_dim**-0.5
    query = normal(dice, batch, width, heads, key_dim).to(dtype)
    # One for all rows, or one for each.
    masks = dice.choice([1, batch, batch, batch])
    seen = dice.choice([any_slots, slots_in_reach])(dice, masks, width, slots)
    keys = cache(dice, batch, groups, slots, key_dim, seen, dtype)
    values = cache(dice, batch, groups, slots, value_dim, seen, dtype)
    mask = additive(dice, seen, heads, dtype).expand(batch, -1, -1, -1)
    cap = dice.choice([0.0, 0.0, 0.5, 30.0])
    sinks = (3 * normal(dice, heads)).to(dtype) if dice.random() < 0.3 else None
    expected = softmax_attention(query, keys, values, mask, scale, cap, sinks)
    bound = torch.full_like(expected, ROUNDING[dtype]) * values.double().nan_to_num().abs().amax()
    row, column = dice.randrange(batch), dice.randrange(width)
    here, there = slice(row, row + 1), slice(column, column + 1)
    shape = (batch, width, heads, value_dim)
    added = [] if sinks is None else [sinks]
    alone = Call(
        Operation.ATTENTION,
        [query[here, there].contiguous(), keys[here], values[here], mask[here, :, there], *added],
        (1, 1, *shape[2:]),
        scale,
        cap,
    )
    call = Call(Operation.ATTENTION, [query, keys, values, mask, *added], shape, scale, cap)
    return Case(call, expected, bound, None, alone, (row, column))


def dim(dice: random.Random) -> int:
    """Of a head."""
    return dice.choice([dice.randint(1, 40), dice.randint(1, 150), 64, 80, 128])


def any_slots(dice: random.Random, batch: int, width: int, slots: int) -> Tensor:
    """Of any density, with a long run that no column sees; ``[batch, width, slots]``."""
    generator = torch.Generator().manual_seed(dice.getrandbits(32))
    seen = torch.rand(batch, width, slots, generator=generator) < dice.random()
    begin = dice.randrange(slots)
    seen[..., begin : begin + dice.randrange(200)] = False
    # Each column must see at least one.
    only = torch.randint(slots, (batch, width, 1), generator=generator)
    return seen.scatter_(2, only.where(torch.rand(only.shape, generator=generator) < 0.7, slots - 1), True)


def slots_in_reach(dice: random.Random, batch: int, width: int, slots: int) -> Tensor:
    """Of rows at positions of their own, at the first and the last among them, and padded columns."""
    address = torch.arange(slots) + SPARE
    last = max(0, slots + SPARE - 1)
    starts = [dice.choice([0, last, max(0, last - width + 1), dice.randint(0, last)]) for _ in range(batch)]
    positions = (torch.tensor(starts)[:, None] + torch.arange(width)).clamp(max=last)
    # Rows end at the last column, and some begin later than others.
    padding = torch.arange(width) < torch.tensor([[dice.randint(0, width)] for _ in range(batch)])
    span = dice.randint(1, slots)
    reach = dice.choice([Reach(), Reach(window=span), Reach(chunk=span)])
    # A cache of one slot has the spare one alone.
    return reach.sees(positions, padding | (slots == 1), address)


def cache(
    dice: random.Random, batch: int, groups: int, slots: int, dim: int, seen: Tensor, dtype: torch.dtype
) -> Tensor:
    """
    Keys or values: the first slots of a longer buffer.

    NaN stand behind the span, and in pieces that no column of the row sees.
    """
    longer = slots + dice.choice([0, 1, 5])
    buffer = normal(dice, batch, groups, longer, dim).to(dtype)
    buffer[:, :, slots:] = torch.nan
    by_piece = pad(seen.any(dim=1), (0, -slots % PIECE)).unflatten(1, (-1, PIECE)).any(dim=2)
    read = by_piece.repeat_interleave(PIECE, 1)[:, None, :slots, None]
    buffer[:, :, :slots] = buffer[:, :, :slots].where(read, torch.nan)
    return buffer[:, :, :slots]


def additive(dice: random.Random, seen: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """The mask: one for all heads, one for each, or with biases as ALiBi's; of a longer span or not."""
    slots, action = seen.shape[2], dice.random()
    mask = torch.where(seen, 0.0, hidden(dtype))[:, None]
    if action < 0.3:
        slopes = torch.arange(1, heads + 1)[None, :, None, None] / heads / slots
        mask = torch.where(seen[:, None], -slopes * torch.arange(slots), mask)
    elif action < 0.5:
        mask = mask.repeat(1, heads, 1, 1)
    longer = pad(mask, (0, dice.choice([0, 3])), value=torch.nan).to(dtype)
    return longer[..., :slots].expand(-1, heads, -1, -1)


def softmax_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention by the formula; pieces of NaN are not read."""
    sharing = query.shape[2] // keys.shape[1]
    keys, values = (states.double().nan_to_num().repeat_interleave(sharing, 1) for states in (keys, values))
    scores = query.double().transpose(1, 2) @ keys.mT * scale
    if cap:
        scores = cap * (scores / cap).tanh()
    scores = scores + mask.double()
    if sinks is not None:
        sink = sinks.double()[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=-1)
    return (scores.softmax(-1)[..., : keys.shape[2]] @ values).transpose(1, 2)
