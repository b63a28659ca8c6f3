"""Conversations that keep their cache."""

import weakref
from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

import attrs
from attrs import setters

from ..chat import require_chat_template
from ..generator import Generator
from ..prompts import as_rows
from ..results.events import EventStream
from ..results.statistics import Statistics
from ..validation import is_whole, stream_numbers
from .answer_source import AnswerSource, source_of
from .batcher import Batcher
from .conversation import Message, Turn, as_messages, messages_of, next_turn
from .finished_answer import with_answer
from .session_file import read_turns, require_tokenizer, write_turns


class SessionFullError(ValueError):
    """A conversation and its next turn have more tokens than the decoder has positions."""


def _random_stream(value: Any) -> int:
    return int(stream_numbers([value], 1))


def _a_text(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"'{attribute.name}' must be a text: got {value!r}")


@attrs.define(eq=False, repr=False)
class Session:
    """
    A conversation, turn by turn, in the tokenizer's chat template.

    The conversation is a list of ids. Generated ids are never encoded again while the template only adds to
    the conversation: what it adds for a turn is encoded alone (:attr:`Turn.rewritten` says where it did
    not). An answer is that of a call with these ids as the prompt, ``generator([turn.prompt],
    random_streams=[turn.random_stream])``, if the sampler has a seed. What the cache still holds of them is
    not fed again.

    With a generator, answers come from the first row of its decoder, and other calls between the turns
    overwrite the cache: the next turn feeds what they overwrote. With a batcher, each session has a
    :class:`~.row_pin.RowPin`.

    An answer joins the conversation when its stream ends. If its reader breaks off, the tokens of the events
    that it took are the answer, and without any the conversation is as before; so it is too after an
    exception of a part or the decoder. Each method below first closes a stream that has not ended. Not for
    several threads at a time.

    Args:
        server: A :class:`~..generator.Generator`, or a :class:`~.batcher.Batcher`.

        parts: With a batcher, those of the answers: a generator's ``.parts``.

        system: The text of a system message.

        random_stream: The random stream of every turn: a token's noise depends on it and on the token's
            position. A turn that is repeated with the same ids gives the same answer, if the sampler has a
            seed.

    Raises:
        TypeError: There is no tokenizer, or another argument has a wrong type.

        ValueError: The tokenizer has no chat template.
    """

    server: Generator | Batcher = attrs.field(on_setattr=setters.frozen)
    parts: Any = attrs.field(default=None, kw_only=True, on_setattr=setters.frozen)
    system: str | None = attrs.field(default=None, kw_only=True, validator=_a_text, on_setattr=setters.frozen)
    random_stream: int = attrs.field(default=0, kw_only=True, converter=_random_stream)

    _source: AnswerSource = attrs.field(init=False)
    _turns: tuple[Turn, ...] = attrs.field(default=(), init=False)
    _running: "weakref.ref[EventStream] | None" = attrs.field(default=None, init=False)
    """The stream of the newest answer. Weak: a reader that drops it closes it."""

    def __attrs_post_init__(self) -> None:
        """Check that there are answers, and a template for the turns."""
        self._source = source_of(self.server, self.parts)
        require_chat_template(self._source.parts.tokenizer)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns so far."""
        return self._turns

    @property
    def messages(self) -> list[Message]:
        """All messages so far, the system's first."""
        return [*self._first_messages(), *messages_of(self._turns)]

    @property
    def ids(self) -> list[int]:
        """All ids so far: the prompt and the answer of the last turn."""
        return [*self._turns[-1].prompt, *self._turns[-1].ids] if self._turns else []

    @property
    def statistics(self) -> Statistics:
        """Of all turns; those of a loaded session count from the loading on."""
        return sum((turn.statistics for turn in self._turns), Statistics())

    def say(self, message: str | Sequence[Message], *, random_stream: int | None = None) -> EventStream:
        """
        Say something, and stream the answer.

        Args:
            message: A user's text, or messages (``{"role": ..., "content": ...}``) of which the last is not
                the assistant's.

            random_stream: Another random stream than the session's, for this turn.

        Returns:
            The answer's events, as from a generator's ``stream``. Nothing is fed before the first is
            requested. On a batcher, reading them raises what its ``submit`` does, such as
            ``BatcherFullError``; the conversation is then as before.

        Raises:
            SessionFullError: The turn does not fit. Nothing has changed.

            TypeError: *message* is no message. Nothing has changed.

            ValueError: The template refuses the messages, or an id is not in the vocabulary. Nothing has
                changed.
        """
        self._settle()
        return self._begin(self._turns, message, random_stream)

    def edit(
        self, turn: int, message: str | Sequence[Message], *, random_stream: int | None = None
    ) -> EventStream:
        """
        Say something else in place of a turn, and stream the answer.

        The turn and those after it leave the conversation when the new answer joins it.

        Args:
            turn: Its index in :attr:`turns`; negative ones count from the end.

            message: As in :meth:`say`.

            random_stream: As in :meth:`say`.

        Raises:
            IndexError: There is no such turn. Nothing has changed.

            Exception: As in :meth:`say`.
        """
        self._settle()
        return self._begin(self._turns[: self._index(turn)], message, random_stream)

    def rewind(self, turn: int = -1) -> None:
        """
        Take back a turn and those after it.

        Args:
            turn: As in :meth:`edit`.

        Raises:
            IndexError: There is no such turn. Nothing has changed.
        """
        self._settle()
        self._turns = self._turns[: self._index(turn)]

    def branch(self, *, random_stream: int | None = None) -> Self:
        """
        A second session with the same turns, which goes on by itself.

        On a batcher it takes a row of its own, to which its first turn copies the conversation, or feeds it
        where the decoder copies no rows. On a generator both sessions use one row, and each feeds again what
        the other overwrote.

        Args:
            random_stream: Its random stream; None for the same.
        """
        self._settle()
        other = (
            attrs.evolve(self) if random_stream is None else attrs.evolve(self, random_stream=random_stream)
        )
        other._turns = self._turns
        return other

    def save(self, file: str | PathLike[str]) -> None:
        """
        Write messages and ids as JSON, for :meth:`load`. Not the cache, the parts, or the statistics.

        Raises:
            TypeError: A message is not JSON. Nothing has been written.

            OSError: The file cannot be written. What it held is still there.
        """
        self._settle()
        write_turns(file, self.system, self.random_stream, self._turns)

    @classmethod
    def load(cls, file: str | PathLike[str], server: Generator | Batcher, *, parts: Any = None) -> Self:
        """
        Read a session that was saved. Its next turn feeds all of it.

        Args:
            file: What :meth:`save` has written.

            server: As of a session; with a tokenizer and a chat template as before.

            parts: As of a session.

        Raises:
            FileNotFoundError: There is no such file.

            TypeError: As of a session.

            ValueError: *file* is no session, or another tokenizer has encoded it.
        """
        system, random_stream, turns = read_turns(file)
        session = cls(server, parts=parts, system=system, random_stream=random_stream)
        require_tokenizer(file, turns, session._source.parts.tokenizer)
        session._turns = turns
        return session

    def release(self) -> None:
        """On a batcher: give the session's row up. Its next turn takes one again. Else without effect."""
        self._settle()
        self._source.release()

    def __repr__(self) -> str:
        """One line: turns and tokens."""
        return f"<{type(self).__name__}: {len(self._turns)} turns, {len(self.ids)} tokens>"

    def _first_messages(self) -> list[Message]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def _index(self, turn: int) -> int:
        if not is_whole(turn):
            raise TypeError(f"'turn' must be the index of a turn: got {turn!r}")
        if not -len(self._turns) <= turn < len(self._turns):
            raise IndexError(f"'turn' must be the index of one of {len(self._turns)} turns: got {turn}")
        return turn % len(self._turns)

    def _settle(self) -> None:
        """Close the stream of an answer that has not ended, which then joins the conversation."""
        stream = None if self._running is None else self._running()
        self._running = None
        if stream is not None:
            stream.close()

    def _begin(self, before: tuple[Turn, ...], message: Any, random_stream: int | None) -> EventStream:
        """Check and encode what is said after the turns *before*."""
        stream_number = self.random_stream if random_stream is None else random_stream
        stream_numbers([stream_number], 1)
        turn = next_turn(before, self._first_messages(), as_messages(message), self._source.parts.tokenizer)
        self._require_room(turn, before)
        stream = self._answered(before, attrs.evolve(turn, random_stream=int(stream_number)))
        self._running = weakref.ref(stream)
        return stream

    def _require_room(self, turn: Turn, before: Sequence[Turn]) -> None:
        length, most = len(turn.prompt), self._source.shape.max_length
        if length > most:
            raise SessionFullError(
                f"a conversation must have at most {most} tokens, the decoder's max_length: after "
                f"{len(before)} turns this one makes it {length}. Rewind it, or begin another session"
            )
        as_rows([turn.prompt], self._source.shape)

    def _answered(self, before: tuple[Turn, ...], turn: Turn) -> EventStream:
        counted: list[Statistics] = []
        ids: list[int] = []
        finish, taken = None, False
        events = self._source.stream(turn.prompt, turn.random_stream, counted.append)
        try:
            for event in events:
                ids += event.ids
                finish, taken = event.finish, True
                yield event
        except Exception:
            taken = False
            raise
        finally:
            events.close()
            if taken:
                self._turns = (*before, with_answer(turn, ids, finish, counted[0], self._source.parts))
