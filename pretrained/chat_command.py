"""``python -m decodekit chat``: a conversation, turn by turn, in the model's chat template."""

import argparse
import io
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..decoding import Finish, Generation, Session, Turn
from ..decoding.chat import chat_ids
from ..decoding.results.events import EventStream
from ..decoding.sampling.noise import fresh_seed
from ..streaming import TextStreamer
from .command_generator import generator_of
from .generate_command import chat_of
from .generation_report import report

_END = "/exit"
_UNDO = "/undo"
_EDIT = "/edit"
_COMMANDS = (
    f"{_END} ends the conversation, {_UNDO} takes the last turn back, {_EDIT} TEXT says TEXT in its place; "
    "a message that begins with / is written with //"
)


class _CommandError(Exception):
    """A line that is no command, or none that can be done now."""


def chat(options: argparse.Namespace) -> int:
    """Answer each line of standard input until it ends or a line is ``/exit``."""
    if options.temp > 0 and options.seed is None:
        # One for the whole conversation, which can then be repeated.
        options.seed = fresh_seed()
    if sys.stdin is None:
        raise ValueError("standard input must be open: got a closed one")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A wrong byte must not end a conversation.
        sys.stdin.reconfigure(errors="replace")
    first = chat_of("?", options.system)
    generator = generator_of(options, check_prompt=partial(_check_system, first))
    session = Session(generator, system=options.system)
    if sys.stdin.isatty():
        print(_COMMANDS, file=sys.stderr)
    converse(session, _lines(), seed=options.seed if options.temp > 0 else None, quiet=options.quiet)
    return 0


def _check_system(first: list[dict[str, str]], tokenizer: Any, positions: int | None) -> None:
    """Encode the *first* messages before anything is compiled; refuse those that exceed a row."""
    count = len(chat_ids(first, tokenizer))
    if positions is not None and count > positions:
        flag = "--system" if first[0]["role"] == "system" else "the chat template"
        raise ValueError(f"{flag} must leave room in {positions} tokens (--max-length): got {count}")


def converse(session: Session, lines: Iterator[str], *, seed: int | None = None, quiet: bool = False) -> None:
    """
    Answer each of *lines*.

    ``/undo`` takes the last turn back, and ``/edit TEXT`` says something else in its place; any other line
    that begins with one ``/`` lists the commands. What cannot be, such as a line for which the conversation
    has no room, or one that the template refuses, is reported, and the conversation stays. An interrupt ends
    the answer alone.

    Args:
        session: The conversation; extended.

        lines: What the user says.

        seed: The generator's seed, for the figures; None if it does not sample.

        quiet: Whether figures are left out.
    """
    for line in lines:
        try:
            answer = _answer(session, line)
        except (ValueError, IndexError, _CommandError) as error:
            print(error, file=sys.stderr)
            continue
        if answer is None:
            continue
        try:
            _print(answer)
        except KeyboardInterrupt:
            answer.close()
            print()
            continue
        if not quiet:
            print(report(_generation(session.turns[-1], seed), seed is not None), file=sys.stderr)


def _answer(session: Session, line: str) -> EventStream | None:
    """The answer to a line; None after a command that has none."""
    command, _, text = line.strip().partition(" ")
    if command.startswith("//"):
        return session.say(line.lstrip()[1:])
    if not command.startswith("/"):
        return session.say(line)
    if command not in (_EDIT, _UNDO) or bool(text) != (command == _EDIT):
        raise _CommandError(_COMMANDS)
    if not session.turns:
        raise _CommandError("nothing was said yet")
    if command == _EDIT:
        return session.edit(-1, text)
    session.rewind()
    print("the last turn is taken back", file=sys.stderr)
    return None


def _print(answer: EventStream) -> None:
    streamer = TextStreamer()
    try:
        for event in answer:
            streamer.put_event(event)
    finally:
        streamer.end()
    print(flush=True)


def _generation(turn: Turn, seed: int | None) -> Generation:
    """A turn as the result of a call."""
    finish = None if turn.finish_reason is None else Finish(turn.finish_reason)
    return Generation([turn.prompt], [turn.ids], [turn.text], [finish], turn.statistics, seed=seed)


def _lines() -> Iterator[str]:
    """Lines that say something."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() == _END:
            return
        if line.strip():
            yield line.rstrip("\r\n")
