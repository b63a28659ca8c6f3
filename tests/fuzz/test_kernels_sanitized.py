"""
The CPU's kernels under AddressSanitizer and UndefinedBehaviorSanitizer, between pages without access.

For as long as ``--fuzz-minutes`` says; ``--fuzz-seed`` is the first seed. A finding names its seed: with it
and ``--fuzz-minutes 0`` its test repeats that case alone.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.neuron_backend.targets.cpu import toolchain
from decodekit.neuron_backend.targets.cpu.kernel_library import DTYPES

from .kernels.attentions import attention
from .kernels.builds import ENVIRONMENT, KINDS, Kind, build, has_sanitizers
from .kernels.case import Case, Wrong
from .kernels.driver import Driver, Operation, Place, Stopped, Way
from .kernels.products import column_product, expert_product, float_product, int4_product, int8_product

pytestmark = pytest.mark.campaign

PRODUCTS = {
    Operation.FLOATS: float_product,
    Operation.INT8: int8_product,
    Operation.INT4: int4_product,
    Operation.COLUMNS: column_product,
    Operation.EXPERTS: expert_product,
    Operation.EXPERT_COLUMNS: expert_product,
}

# Of more rows than are held in registers or cache at once.
MOST_ROWS = 70

MOST_FINDINGS = 5


def random_way(dice: random.Random) -> Way:
    """Any."""
    return Way(dice.choice(list(Place)), dice.choice([1, 2]), dice.random() < 0.5)


def random_case(dice: random.Random, dtype: torch.dtype) -> Case:
    """For any kernel; mostly of few rows."""
    rows = [dice.randint(1, 9), dice.randint(1, 9), dice.randint(1, MOST_ROWS)]
    operation = dice.choice(list(Operation))
    if operation == Operation.ATTENTION:
        return attention(dice, dtype)
    return PRODUCTS[operation](dice, dtype, rows)


def run_seed(driver: Driver, seed: int, dtype: torch.dtype) -> str:
    """
    Call a kernel and compare: with the expected result, one row or column alone, other threads, and some
    rows or columns padding.

    Returns:
        What was called.

    Raises:
        Stopped: A call ended the program.

        Wrong: A result is not what it must be.
    """
    dice = random.Random(seed)
    case, way = random_case(dice, dtype), random_way(dice)
    found = driver.call(case.call, way)
    case.check(found)
    case.check_alone(found, driver.call(case.alone, random_way(dice)))
    again = driver.call(case.call, attrs.evolve(way, threads=3 - way.threads))
    if not torch.equal(found.view(torch.uint8), again.view(torch.uint8)):
        raise Wrong("differs in bits with another number of threads")
    case.check_padded(found, *padded(driver, case, dice))
    return f"{case.call.operation.name.lower()}, {way.place.name.lower()}"


def padded(driver: Driver, case: Case, dice: random.Random) -> tuple[Tensor, Tensor]:
    """The result where some rows or columns are padding, and which of them are tokens."""
    sizes = case.call.shape[: len(case.at)]
    # Of experts, an id may have several rows.
    several = case.call.operation in (Operation.EXPERTS, Operation.EXPERT_COLUMNS) and prod(sizes) % 2 == 0
    each = 2 if several else 1
    count = prod(sizes) // each
    begin = dice.randrange(count)
    # Anywhere, or a run of them.
    end = dice.randint(begin, count)
    tokens = dice.choice(
        [[dice.random() < 0.5 for _ in range(count)], [begin <= i < end for i in range(count)]]
    )
    ids = tuple(dice.randrange(100) if token else -dice.randint(1, 2) for token in tokens)
    way = attrs.evolve(random_way(dice), as_programs=False)
    found = driver.call(attrs.evolve(case.call, ids=ids), way)
    return found, torch.tensor(tokens).repeat_interleave(each).view(*sizes)


class Session:
    """A driver program that is started anew when it ends."""

    def __init__(self, kind: Kind, dtype: torch.dtype, folder: Path):
        self._program, self._running = build(kind, dtype, folder), None

    def driver(self) -> Driver:
        """The running program."""
        self._running = self._running or Driver.start(self._program, ENVIRONMENT)
        return self._running

    def stop(self) -> None:
        """End the program."""
        if self._running is not None:
            self._running.stop()
        self._running = None


@contextmanager
def session(kind: Kind, dtype: torch.dtype, folder: Path) -> Iterator[Session]:
    """End the program afterwards."""
    made = Session(kind, dtype, folder)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize(
    "dtype", sorted(DTYPES, key=str), ids=lambda dtype: str(dtype).removeprefix("torch.")
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kernels_stay_within_their_operands(
    kind: Kind, dtype: torch.dtype, tmp_path: Path, pytestconfig: Any
) -> None:
    """No report, no fault, the expected result, and the same bits alone and on other threads."""
    if toolchain.lack() is not None or (kind.sanitized and not has_sanitizers(tmp_path)):
        pytest.skip("needs a C++ compiler with sanitizers")
    if missing := kind.missing():
        pytest.skip(f"this machine lacks {', '.join(sorted(missing))}")
    runnable = sum(not each.missing() for each in KINDS) * len(DTYPES)
    minutes = pytestconfig.getoption("--fuzz-minutes") / runnable
    outcomes, findings = Counter[str](), list[str]()
    seed = pytestconfig.getoption("--fuzz-seed")
    with session(kind, dtype, tmp_path) as programs:
        until = time.monotonic() + 60 * minutes
        while True:
            try:
                outcomes[run_seed(programs.driver(), seed, dtype)] += 1
            except (Stopped, Wrong) as finding:
                findings.append(f"seed {seed}: {finding}")
                programs.stop()
            seed += 1
            if time.monotonic() >= until or len(findings) == MOST_FINDINGS:
                break
    print(kind.name, dtype, dict(sorted(outcomes.items())), "up to seed", seed)
    assert not findings, "\n".join(findings)
