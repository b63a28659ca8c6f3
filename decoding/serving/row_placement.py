"""The row that a newcomer takes."""

from collections.abc import Collection, Sequence


def best_row(
    free: Sequence[int],
    overlap: Sequence[int],
    held: Sequence[int],
    pinned: Collection[int] = (),
    own: int | None = None,
) -> int:
    """
    The free row whose cache helps a newcomer most, and among equals the one that loses least.

    Pinned rows come last, and of them the one first that loses least.

    Args:
        free: The free rows, at least one.

        overlap: How many leading tokens of the newcomer each row of the decoder holds.

        held: How many tokens each row holds.

        pinned: The rows that are held for others.

        own: The row that is held for the newcomer, which takes it if it is free.

    >>> best_row([0, 1, 2], overlap=[4, 9, 9], held=[4, 30, 12])
    2
    >>> best_row([0, 1, 2], overlap=[4, 9, 9], held=[4, 30, 12], pinned={2})
    1
    >>> best_row([1, 2], overlap=[4, 9, 9], held=[4, 30, 12], pinned={1, 2})
    2
    """
    if own is not None and own in free:
        return own
    unpinned = [row for row in free if row not in pinned]
    if unpinned:
        return min(unpinned, key=lambda row: (-overlap[row], held[row], row))
    return min(free, key=lambda row: (held[row] - overlap[row], row))
