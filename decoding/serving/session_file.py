"""Sessions as JSON."""

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ..chat import is_chat, template_ids
from ..validation import is_whole
from ..whole_file import write_whole
from .conversation import Segment, Turn

_FORMAT = "decodekit session 1"


def write_turns(
    file: str | PathLike[str], system: str | None, random_stream: int, turns: Sequence[Turn]
) -> None:
    """
    Write a session.

    Raises:
        TypeError: A message is not JSON. Nothing has been written.

        OSError: The file cannot be written. What it held is still there.
    """
    before: tuple[Segment, ...] = ()
    rows = []
    for turn in turns:
        rows.append(_as_json(turn, before))
        before = (*turn.segments, *turn.answer)
    session = {"format": _FORMAT, "system": system, "random_stream": random_stream, "turns": rows}
    text = json.dumps(session, indent=1)
    write_whole(file, f"{text}\n".encode())


def read_turns(file: str | PathLike[str]) -> tuple[str | None, int, tuple[Turn, ...]]:
    """
    Read the system message, the random stream and the turns of a session.

    Raises:
        ValueError: *file* is not what :func:`write_turns` has written.
    """
    try:
        session = json.loads(Path(file).read_bytes())
        _require(session["format"] == _FORMAT)
        turns: list[Turn] = []
        for row in session["turns"]:
            before = (*turns[-1].segments, *turns[-1].answer) if turns else ()
            turns.append(_from_json(row, before))
        system, random_stream = session["system"], session["random_stream"]
        _require((system is None or isinstance(system, str)) and is_whole(random_stream))
    except (IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"'file' must be a session that save() has written: got {file}") from error
    return system, random_stream, tuple(turns)


def require_tokenizer(file: str | PathLike[str], turns: Sequence[Turn], tokenizer: Any) -> None:
    """
    Check that *tokenizer* encodes the first turn as it was.

    Raises:
        ValueError: It does not: another tokenizer has encoded what *file* holds.
    """
    first = turns[0].segments[0] if turns else Segment("", ())
    if tuple(template_ids(first.text, tokenizer)) != first.ids:
        raise ValueError(
            f"'file' must have been written with this tokenizer, which encodes otherwise: {file}"
        )


def _as_json(turn: Turn, before: Sequence[Segment]) -> dict[str, Any]:
    shared = sum(one is other for one, other in zip(turn.segments, before, strict=False))
    return {
        "messages": turn.messages,
        "text": turn.text,
        "shared": shared,
        "added": [_segment_as_json(segment) for segment in turn.segments[shared:]],
        "answer": [_segment_as_json(segment) for segment in turn.answer],
        "finish_reason": turn.finish_reason,
        "rewritten": turn.rewritten,
        "random_stream": turn.random_stream,
    }


def _from_json(row: dict[str, Any], before: tuple[Segment, ...]) -> Turn:
    shared, reason = row["shared"], row["finish_reason"]
    numbers = shared, row["rewritten"], row["random_stream"]
    _require(all(map(is_whole, numbers)) and 0 <= shared <= len(before) and is_chat(row["messages"]))
    _require(isinstance(row["text"], str) and (reason is None or isinstance(reason, str)))
    added = tuple(_segment_from_json(one) for one in row["added"])
    _require(bool(added))
    return Turn(
        messages=tuple(row["messages"]),
        segments=(*before[:shared], *added),
        answer=tuple(_segment_from_json(one) for one in row["answer"]),
        text=row["text"],
        finish_reason=reason,
        rewritten=row["rewritten"],
        random_stream=row["random_stream"],
    )


def _segment_as_json(segment: Segment) -> dict[str, Any]:
    return {"text": segment.text, "ids": list(segment.ids), **({"hidden": True} if segment.hidden else {})}


def _segment_from_json(one: dict[str, Any]) -> Segment:
    text, ids, hidden = one["text"], one["ids"], one.get("hidden", False)
    _require(isinstance(text, str) and isinstance(ids, list) and all(map(is_whole, ids)))
    _require(isinstance(hidden, bool))
    return Segment(text, tuple(ids), hidden)


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("a field has another type or value")
