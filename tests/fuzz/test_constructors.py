"""
Every public class, made with values off in type, range and size: what is wrong is said by name.

For as long as ``--fuzz-minutes`` says; ``--fuzz-seed`` is the first seed. A finding names its seed.
"""

import importlib
import inspect
import random
import time
import warnings
from collections import Counter
from typing import Any

import pytest
import torch

from decodekit.decoding import Finish, Greedy, MaxNewTokens
from decodekit.processors import Temperature
from decodekit.testing import ScriptedDecoder

pytestmark = pytest.mark.campaign

PACKAGES = ("decoding", "processors", "speculation", "streaming")

EXPECTED = (TypeError, ValueError)

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 7, 10**30, -(10**30), 2**63, 2**31, 0.0, 0.5, 1.5, -0.5, 1e308),
    *(float("nan"), float("inf"), -float("inf"), "", "x", b"x", (), [], {}, [1], [1, 2], (3,), [[1], [2, 3]]),
    *([-1], [10**30], ["x"], [None], [0.5], {1: 2.0}, {"x": 1}, {(1, 2): 0.5}, object(), object, len),
    *(torch.tensor(1), torch.tensor([1, 2]), torch.tensor([0.5, 0.7]), torch.zeros(2, 2), torch.zeros(0)),
    *(Temperature(0.5), Greedy(), MaxNewTokens(3), Finish("x"), ScriptedDecoder(torch.zeros(1, 3))),
]


def public_classes() -> list[type]:
    """The classes that packages export, protocols apart."""
    found = []
    for package in PACKAGES:
        module = importlib.import_module(f"decodekit.{package}")
        for name in module.__all__:
            kind = getattr(module, name)
            if inspect.isclass(kind) and not getattr(kind, "_is_protocol", False):
                found.append(kind)
    return found


def arguments(kind: type, dice: random.Random) -> dict[str, Any]:
    """Values for some of its parameters, all that have no default among them."""
    return {
        parameter.name: dice.choice(VALUES)
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and (parameter.default is parameter.empty or dice.random() < 0.5)
    }


def test_each_is_made_or_refused(pytestconfig: Any) -> None:
    """By a TypeError or a ValueError with words of ours."""
    kinds, outcomes, findings = public_classes(), Counter[str](), {}
    seed = pytestconfig.getoption("--fuzz-seed")
    until = time.monotonic() + 60 * pytestconfig.getoption("--fuzz-minutes")
    while time.monotonic() < until:
        dice = random.Random(seed)
        kind = dice.choice(kinds)
        try:
            given = arguments(kind, dice)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind(**given)
        except EXPECTED:
            outcomes["refused"] += 1
        except Exception as error:
            where = f"{kind.__name__}: {type(error).__name__}"
            findings.setdefault(where, f"seed {seed}, {kind.__name__}(**{given}): {error!r}")
        else:
            outcomes["made"] += 1
        seed += 1
    print(dict(outcomes), "up to seed", seed)
    assert not findings, "\n".join(findings.values())
