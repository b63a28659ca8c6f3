"""An answer as it becomes part of a conversation."""

from collections.abc import Callable, Sequence

import attrs

from ..engine.parts import Parts
from ..protocols import Finish
from ..results.row_text import RowText
from ..results.statistics import Statistics
from ..stopping.end_of_sequence import EndOfSequence
from ..text.detokenizer import Detokenizer
from ..text.tokenizer import decode_ids
from .conversation import Segment, Turn


def with_answer(turn: Turn, ids: list[int], finish: Finish | None, counted: Statistics, parts: Parts) -> Turn:
    """
    *turn* with its answer.

    Args:
        turn: Without one.

        ids: What was generated.

        finish: Why it ended; None if it was broken off.

        counted: Its statistics.

        parts: Have a tokenizer.
    """
    detokenizer = Detokenizer(parts.tokenizer, parts.skip_special_tokens)

    def decode(some: Sequence[int]) -> str:
        row = detokenizer.another()
        return row.push(some) + row.flush()

    if finish is None:
        text = decode(ids)
    else:
        # The template writes the end of sequence itself.
        hide = finish.hide or finish.reason == EndOfSequence.reason
        row = RowText(detokenizer.another(), parts.stop_condition.finishes)
        text = row.push(ids, attrs.evolve(finish, hide=hide))
    return attrs.evolve(
        turn,
        answer=answer_segments(ids, text, decode, parts),
        text=text,
        finish_reason=None if finish is None else finish.reason,
        statistics=counted,
    )


def answer_segments(
    ids: Sequence[int], text: str, decode: Callable[[Sequence[int]], str], parts: Parts
) -> tuple[Segment, ...]:
    """
    The *ids* of an answer, those that its text leaves out at its end apart.

    Args:
        ids: All of them.

        text: The answer's text.

        decode: The text of some of the ids.

        parts: Their tokenizer decodes the others, special tokens included.
    """
    end = len(ids)
    while end and len(decode(ids[: end - 1])) >= len(text):
        if len(decode(ids[:end])) == len(text) and decode(ids[end - 1 : end]):
            # A part of a character, which all of its tokens show as one.
            break
        end -= 1
    if decode(ids[:end]) != text:
        # A token of which only a part is in the text.
        end -= 1
    shown, rest = decode(ids[:end]), list(ids[end:])
    if not text.startswith(shown):
        # The beginning of the answer alone decodes to another text.
        return (Segment(text, tuple(ids)),)
    hidden = Segment(decode_ids(parts.tokenizer, rest, skip_special_tokens=False), tuple(rest), hidden=True)
    return tuple(segment for segment in (Segment(shown, tuple(ids[:end])), hidden) if segment.ids)
