"""
Every public class, made with values off in type, range and size: what is wrong is said by name.

For as long as ``--fuzz-minutes`` says; ``--fuzz-seed`` is the first seed. A finding names its seed.
"""

import importlib
import inspect
import random
from functools import cache
from typing import Any

import pytest

from .campaign import run_campaign
from .odd_values import VALUES
from .refusals import made_or_refused

pytestmark = pytest.mark.campaign

PACKAGES = ("decoding", "processors", "speculation", "streaming")


@cache
def public_classes() -> list[type]:
    """The classes that packages export, protocols, abstract ones and exceptions apart."""
    found = []
    for package in PACKAGES:
        module = importlib.import_module(f"decodekit.{package}")
        for name in module.__all__:
            kind = getattr(module, name)
            if not inspect.isclass(kind) or inspect.isabstract(kind) or issubclass(kind, Exception):
                continue
            if not getattr(kind, "_is_protocol", False):
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


def make(seed: int) -> str:
    """Make one object; whether that was refused."""
    dice = random.Random(seed)
    kind = dice.choice(public_classes())
    given = arguments(kind, dice)
    return made_or_refused(kind.__name__, lambda: kind(**given), given)


def test_each_is_made_or_refused(pytestconfig: pytest.Config) -> None:
    """By a TypeError or a ValueError with words of ours."""
    run_campaign(pytestconfig, make)
