"""Conversations as ids: turns, and the prompt of the next one."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from ..chat import chat_text, is_chat, template_ids
from ..results.statistics import Statistics

_log = logging.getLogger(__name__)

Message: TypeAlias = Mapping[str, Any]
"""``{"role": ..., "content": ...}``, and what else the template reads."""


@attrs.frozen
class Segment:
    """A stretch of a conversation, as text of the chat template and as ids."""

    text: str
    """As the template writes it."""

    ids: tuple[int, ...]

    hidden: bool = False
    """Whether it is the end of an answer that its text leaves out: end of sequence, a stop string."""


@attrs.frozen(eq=False)
class Turn:
    """What was said, and the answer."""

    messages: tuple[Message, ...]
    """What was said: one message or several, without the answer."""

    segments: tuple[Segment, ...]
    """The prompt: the conversation so far, and what the template adds to it."""

    answer: tuple[Segment, ...] = ()
    """The answer's ids as they were generated: its text, and the end that the text leaves out."""

    text: str = ""
    """The answer's text."""

    finish_reason: str | None = None
    """Why the answer ended; None if it was broken off."""

    rewritten: int = 0
    """
    Tokens of the conversation so far that the prompt does not begin with, since the template now writes
    them, or something before them, otherwise. They, or what replaces them, are fed again. 0 while the
    template only adds to the conversation.
    """

    random_stream: int = 0
    """The random stream of the answer."""

    statistics: Statistics = attrs.field(factory=Statistics, repr=False)
    """Of the answer: among others ``reused``, the tokens of the prompt that were not fed again."""

    @property
    def prompt(self) -> list[int]:
        """The ids that the answer follows."""
        return ids_of(self.segments)

    @property
    def ids(self) -> list[int]:
        """The ids of the answer."""
        return ids_of(self.answer)


def as_messages(message: Any) -> list[Message]:
    """
    A user's text, or messages, as messages.

    Raises:
        TypeError: It is neither.

        ValueError: The last message is the assistant's.
    """
    if isinstance(message, str):
        return [{"role": "user", "content": message}]
    if not is_chat(message):
        raise TypeError(
            "'message' must be a text, or a list of messages such as {'role': 'user', 'content': '...'}: "
            f"got {message!r:.80}"
        )
    if message[-1]["role"] == "assistant":
        raise ValueError(f"the last of 'message' must not be the assistant's: got {message[-1]!r:.80}")
    return [dict(one) for one in message]


def ids_of(segments: Sequence[Segment]) -> list[int]:
    """The ids of *segments*, joined."""
    return [token for segment in segments for token in segment.ids]


def messages_of(turns: Sequence[Turn]) -> list[Message]:
    """What was said in *turns*, answers included."""
    found: list[Message] = []
    for turn in turns:
        found += [*turn.messages, {"role": "assistant", "content": turn.text}]
    return found


def next_turn(
    turns: Sequence[Turn], first: Sequence[Message], messages: Sequence[Message], tokenizer: Any
) -> Turn:
    """
    A turn without its answer.

    The template of all messages is compared with the conversation so far. What it adds is encoded alone, so
    that the ids so far stay as they are. Where it begins otherwise (some templates leave earlier reasoning
    out, or trim white space), everything from the first difference on is encoded again.

    Args:
        turns: The conversation so far.

        first: The messages before its first turn.

        messages: What is said now.

        tokenizer: A Hugging Face tokenizer with a chat template.

    Raises:
        ValueError: The template refuses the messages.
    """
    text = chat_text([*first, *messages_of(turns), *messages], tokenizer)
    before = (*turns[-1].segments, *turns[-1].answer) if turns else ()
    kept, end = 0, 0
    while kept < len(before) and text.startswith(before[kept].text, end):
        end += len(before[kept].text)
        kept += 1
    new = Segment(text[end:], tuple(_ids_after(before[:kept], text[end:], tokenizer)))
    # An answer's hidden end is only left out: that costs nothing.
    lost = ids_of([one for one in before[kept:] if not (one.hidden and one is before[-1])])
    rewritten = len(lost) - _common(lost, new.ids)
    if rewritten:
        message = "the chat template rewrote the last %d of %d tokens of the conversation so far"
        _log.info(message, rewritten, len(ids_of(before)))
    return Turn(tuple(messages), (*before[:kept], new), rewritten=rewritten)


def _ids_after(before: Sequence[Segment], text: str, tokenizer: Any) -> list[int]:
    """The ids of *text*, which follows the segments *before*."""
    if before and before[-1].hidden:
        # Some tokenizers drop white space after a special token, or begin other words otherwise after it.
        end = before[-1]
        ids = template_ids(end.text + text, tokenizer)
        if tuple(ids[: len(end.ids)]) == end.ids:
            return ids[len(end.ids) :]
    return template_ids(text, tokenizer)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids both have."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
