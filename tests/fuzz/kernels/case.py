"""One call of a kernel, and what its result must be."""

import attrs
import torch
from torch import Tensor

from .driver import Call

# Rounding of a float32 sum, and of a result's own dtype.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


class Wrong(Exception):  # noqa: N818  # a finding, not an error of the campaign
    """Raised when a result is not what it must be."""


@attrs.frozen(eq=False)
class Case:
    """A call and its expected result."""

    call: Call

    expected: Tensor
    """In float64."""

    bound: Tensor
    """Largest difference from the expected result where that is finite."""

    same: Tensor | None
    """The result to the last bit, if that is known."""

    alone: Call
    """One of its rows or columns, alone."""

    at: tuple[int, ...]
    """Where the result has it."""

    def check(self, found: Tensor) -> None:
        """
        Compare a result with what is expected.

        Raises:
            Wrong: It is not what it must be.
        """
        finite = self.expected.isfinite()
        wide = found.double()
        # Infinities and NaN are equal, or not what they must be.
        near = torch.where(finite, (wide - self.expected).abs() <= self.bound, equal(wide, self.expected))
        require(near, wide, self.expected, "differs from the product")
        if self.same is not None:
            require(equal(found, self.same), wide, self.same, "differs in bits from the definition")

    def check_alone(self, found: Tensor, alone: Tensor) -> None:
        """
        Compare a result with that of the row or column alone.

        Raises:
            Wrong: They differ.
        """
        part = found[self.at].reshape(alone.shape)
        require(equal(part, alone), part, alone, f"differs in bits from {self.at} alone")

    def check_padded(self, found: Tensor, padded: Tensor, tokens: Tensor) -> None:
        """
        Compare a result with that where only some rows or columns are *tokens*.

        Raises:
            Wrong: Tokens differ, or padding is not zero.
        """
        same, zero = padded[tokens], padded[~tokens]
        require(equal(found[tokens], same), same, found[tokens], "differs in bits beside padding")
        require(zero == 0, zero, torch.zeros_like(zero), "is not zero where padding is")


def equal(found: Tensor, expected: Tensor) -> Tensor:
    """Where numbers are equal, or both NaN."""
    return (found == expected) | (found.isnan() & expected.isnan())


def require(correct: Tensor, found: Tensor, expected: Tensor, what: str) -> None:
    """Raise :class:`Wrong` with the first place that is not *correct*."""
    if not bool(correct.all()):
        at = tuple((~correct).nonzero()[0].tolist())
        raise Wrong(
            f"{what} at {int((~correct).sum())} of {correct.numel()} places, "
            f"first {at}: {found[at].item()}, expected {expected[at].item()}"
        )
