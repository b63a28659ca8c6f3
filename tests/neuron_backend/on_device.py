"""
Shared helpers of tests for a Neuron device.

``pytest -m neuron`` runs them. Each has variants with the same body: the others run it
through a stand-in on the CPU, so that the body is known to work. On the device a test fails where there
is none; where a package is missing it is skipped, since no machine has
all of them.

Rounding differs between devices. Where a text differs from the eager one, the smallest gap between two
best scores must be within the difference of the logits; on a stand-in no text may differ.
"""

import contextlib
import importlib
import subprocess
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import attrs
import pytest
import torch

from decodekit.decoding import Generation, Generator, Greedy, MaxNewTokens, Sample, Slots
from decodekit.decoding.protocols import Decoder, StopCondition
from decodekit.neuron_backend.targets.neuron.detect import INDEX, NeuronFound, probe
from decodekit.processors import RepetitionPenalty, Temperature, TopP
from decodekit.speculation import SpeculativeGenerator

ON_DEVICE: tuple[pytest.MarkDecorator, ...] = (
    pytest.mark.neuron,
    # The packages raise warnings of their own.
    pytest.mark.filterwarnings("default"),
)
"""Marks of a test, or of a parameter, for the device."""

PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 22, 31, 4, 4, 56, 12, 40, 7, 19, 2], [60, 1, 30]]
"""Prompts of two lengths, one longer than a chunk."""

PARTS: dict[str, dict[str, Any]] = {
    "greedy": {"processors": RepetitionPenalty(1.2), "sampler": Greedy()},
    "sampled": {"processors": Temperature(0.9) | TopP(0.95), "sampler": Sample(seed=3)},
}
"""Processors and samplers of the texts."""

_COMPILER = "neuronx-cc"
_STOP = MaxNewTokens(28)


def require_device() -> NeuronFound:
    """The device found by the probe; the test fails if there is none."""
    found = probe()
    if not found.devices and not found.cores:
        pytest.fail(f"these tests need a Neuron device: this machine has none\n{found}", pytrace=False)
    return found


def require_kind(found: NeuronFound, kind: str, package: str) -> None:
    """Skip the test if the *package* for machines of that *kind* is not installed."""
    if found.kind != kind:
        pytest.skip(f"{package} is not installed: {found.reason}")


def require_module(name: str, package: str) -> ModuleType:
    """The module of that *name*; the test is skipped if its *package* is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(
            f"{package} is not installed: pip install --extra-index-url {INDEX} {package} brings it ({error})"
        )


@contextlib.contextmanager
def compiler_forbidden() -> Iterator[None]:
    """Fail the test if Neuron's compiler is started, which all packages run as a process."""
    start = subprocess.Popen.__init__

    def checked(self: Any, args: Any, *others: Any, **options: Any) -> None:
        if _COMPILER in str(args):
            pytest.fail(f"{_COMPILER} must not run any more: got {args}")
        start(self, args, *others, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", checked)
        yield


@attrs.frozen(eq=False)
class Pair:
    """A compiled decoder for the device and an eager decoder."""

    compiled: Any
    """A :class:`~decodekit.decoding.protocols.Decoder`."""

    eager: Decoder
    """The reference, row by row."""

    exact: bool
    """Whether texts must be equal."""

    def check(
        self,
        parts: dict[str, Any],
        drafter: Any = None,
        *,
        prompts: list[list[int]] = PROMPTS,
        stop: StopCondition = _STOP,
    ) -> Generation:
        """
        Compare the texts of both; only the compiled decoder is used with *drafter*.

        Returns:
            The generation of the compiled decoder.
        """
        parts = {**parts, "stop": stop}
        # Forwards outside of a generator have overwritten their caches.
        for decoder in (self.eager, self.compiled):
            Slots.of(decoder).forget()
        expected = Generator(self.eager, record_gap=True, **parts)(prompts)
        if drafter is None:
            found = Generator(self.compiled, **parts)(prompts)
        else:
            found = SpeculativeGenerator(self.compiled, drafter, num_draft_tokens=4, **parts)(prompts)
        self.check_texts(expected, found)
        return found

    def check_texts(self, expected: Generation, found: Generation) -> None:
        """Check that texts are equal, or differ by rounding only."""
        assert sum(len(set(row)) for row in expected.ids) > 10
        if self.exact:
            assert expected.ids == found.ids
        elif expected.ids != found.ids:
            # Both scores may differ, and temperature and penalty may double the difference.
            assert expected.statistics.smallest_gap is not None
            assert expected.statistics.smallest_gap < 4 * self.difference(expected)

    def difference(self, result: Generation) -> float:
        """Largest difference of the logits of both over the tokens of a text."""
        largest = 0.0
        for column, ids in enumerate(torch.tensor(row)[:, None] for row in zip(*result.ids, strict=True)):
            position = torch.full((2,), column)
            logits = [decoder.forward(ids, position) for decoder in (self.eager, self.compiled)]
            largest = max(largest, float((logits[0] - logits[1]).abs().max()))
        return largest
