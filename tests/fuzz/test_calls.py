"""
Public calls with arguments off in type, range and size: refused by name, before anything has changed.

For as long as ``--fuzz-minutes`` says; ``--fuzz-seed`` is the first seed. A finding names its seed.
"""

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch

from .campaign import run_campaign
from .odd_values import VALUES
from .refusals import made_or_refused
from .world import calls, scripted

pytestmark = pytest.mark.campaign

# What a function of Python's raises is no refusal of ours.
ODD = [value for value in VALUES if value is not len]

PROMPTS: list[Any] = [
    *([[1, 99]], [[-1]], [[0.5]], [["a"]], [[True]], [[1] * 100], [[1], [2], [3]], [[1], 2], [None, [1]]),
    *(np.zeros((1, 2)), np.ones((2, 2), np.uint8), np.array(3), np.array(["x"]), torch.ones(2, 2).long()),
    *(torch.ones(1, 2, 2).long(), [torch.tensor([1, 2])], [np.array([1, 2])], [[[1]]], ((1, 2), (3,))),
    *([0, 0], [2**63, 1], [-(10**30), 1], [0.5, 1], [None, 1], [1], torch.tensor([3, 4])),
]


def other(value: Any, dice: random.Random) -> Any:
    """An odd value in place of *value*, or *value* with one of its elements odd, or cut or doubled."""
    kind = dice.random()
    if kind < 0.3:
        return dice.choice(PROMPTS)
    if kind < 0.5 and isinstance(value, torch.Tensor):
        return dice.choice(
            [
                value.float(),
                value[..., :0],
                value[:1],
                value.unsqueeze(0),
                value - 5,
                value * 10**12,
                value.int(),
            ]
        )
    if kind < 0.6 and isinstance(value, list) and value:
        changed = copy.copy(value)
        changed[dice.randrange(len(value))] = dice.choice(ODD)
        return changed
    return dice.choice(ODD)


def check(seed: int) -> str:
    """One wrong call between two right ones."""
    dice = random.Random(seed)
    decoder = scripted()
    known = calls(decoder)
    name = dice.choice(list(known))
    call = known[name]
    expected = call(**call.right)
    wrong = dict(call.right)
    for parameter in dice.sample(list(wrong), min(len(wrong), dice.choice([1, 1, 2]))):
        wrong[parameter] = other(wrong[parameter], dice)
    before, forwards = decoder.slots.clone(), len(decoder.forwards)
    outcome = made_or_refused(name, lambda: call(**wrong), wrong, call.documented)
    if outcome == "refused":
        same = torch.equal(before, decoder.slots) and forwards == len(decoder.forwards)
        assert same, f"{name} was refused after it had changed the decoder, of {wrong}"
    after = call(**call.right)
    assert expected == after, f"{name} differs after a wrong call, of {wrong}: {expected} became {after}"
    return f"{name.partition(' ')[0]} {outcome}"


def test_a_wrong_call_is_refused_and_changes_nothing(pytestconfig: pytest.Config) -> None:
    """By a TypeError or a ValueError in words of ours; a right call gives what it gave before."""
    run_campaign(pytestconfig, check)
