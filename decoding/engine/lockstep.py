"""Parts that decide differently in each process of a divided decoder."""

from ..optional_protocols import AnyDecoder, Seeded, decides_by_time, runs_in_lockstep


def check_lockstep(decoder: AnyDecoder, **parts: object) -> None:
    """
    Refuse what would end the equal steps of the processes that *decoder* is divided over.

    Args:
        decoder: If it is not divided, everything fits it.

        **parts: By the names of their options.

    Raises:
        ValueError: A part decides by time, or draws a seed at each call.
    """
    if not runs_in_lockstep(decoder):
        return
    for name, part in parts.items():
        if decides_by_time(part):
            raise ValueError(
                f"'{name}' must not decide by time where the decoder is divided over processes, as each has "
                f"times of its own: got {part!r}"
            )
        if isinstance(part, Seeded) and part.seed is None:
            raise ValueError(
                "'seed' must be a number where the decoder is divided over processes, as each would draw its "
                f"own: got {part!r}"
            )
