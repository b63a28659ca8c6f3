"""The row that a newcomer takes."""

from collections.abc import Sequence


def best_row(free: Sequence[int], overlap: Sequence[int], held: Sequence[int]) -> int:
    """
    The free row whose cache helps a newcomer most, and among equals the one that loses least.

    Args:
        free: The free rows, at least one.

        overlap: How many leading tokens of the newcomer each row of the decoder holds.

        held: How many tokens each row holds.

    >>> best_row([0, 1, 2], overlap=[4, 9, 9], held=[4, 30, 12])
    2
    """
    return min(free, key=lambda row: (-overlap[row], held[row], row))
