"""What is promised of a row, in a form to be compared."""

from collections.abc import Sequence

import attrs

from decodekit.decoding import Event, Finish, Generation
from decodekit.decoding.protocols import NO_TOKEN_LEFT


def finish_of(finish: Finish | None) -> Finish | None:
    """*finish*, naming a processor that left no token without its parameters, which are those of all rows."""
    if finish is None or finish.reason != NO_TOKEN_LEFT:
        return finish
    return attrs.evolve(finish, matched=str(finish.matched).partition("(")[0])


def outcome_of(generation: Generation) -> list[str]:
    """All that a row is promised: ids, text, finish and log-probabilities; NaN equals NaN."""
    rows = range(len(generation.ids))
    text = generation.text or [None for _ in rows]
    logprobs = generation.logprobs or [None for _ in rows]
    return [
        repr((generation.ids[row], text[row], finish_of(generation.finishes[row]), logprobs[row]))
        for row in rows
    ]


def summed(events: Sequence[Event], prompts: Sequence[Sequence[int]]) -> list[str]:
    """As :func:`outcome_of`, of a stream's events."""
    rows = []
    for row in range(len(prompts)):
        own = [event for event in events if event.row == row]
        ids = [token for event in own for token in event.ids]
        texts = [event.text for event in own if event.text is not None]
        logprobs = [one for event in own for one in event.logprobs or ()]
        rows.append(
            repr(
                (
                    ids,
                    "".join(texts) if texts else None,
                    finish_of(own[-1].finish) if own else None,
                    logprobs if any(event.logprobs is not None for event in events) else None,
                )
            )
        )
    return rows
