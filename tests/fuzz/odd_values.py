"""Values that are off in type, range or size wherever they are given, and some that are not."""

from typing import Any

import torch

from decodekit.decoding import Finish, Greedy, MaxNewTokens
from decodekit.processors import Temperature
from decodekit.testing import ScriptedDecoder

NUMBERS: list[Any] = [
    *(True, False, 0, 1, 2, 3, -1, 7, 2**31, 2**63, 10**30, -(10**30), 10**400),
    *(0.0, 0.5, 1.5, -0.5, 1e308, float("nan"), float("inf"), -float("inf")),
]
SEQUENCES: list[Any] = [
    *("", "x", b"x", (), [], {}, [1], [1, 2], (3,), [[1], [2, 3]], [[]], range(3)),
    *([-1], [10**30], [10**400], ["x"], [None], [0.5], {1: 2.0}, {"x": 1}, {(1, 2): 0.5}),
]
TENSORS: list[Any] = [
    *(torch.tensor(1), torch.tensor([1, 2]), torch.tensor([0.5, 0.7]), torch.zeros(2, 2), torch.zeros(0)),
    *(torch.tensor([True]), torch.zeros(1, 1, 3), torch.zeros(1, 1, dtype=torch.int64), torch.tensor(1j)),
]
OBJECTS: list[Any] = [
    *(None, object(), object, len, Temperature(0.5), Greedy(), MaxNewTokens(3), Finish("x")),
    ScriptedDecoder(torch.zeros(1, 3)),
]
VALUES = [*NUMBERS, *SEQUENCES, *TENSORS, *OBJECTS]
