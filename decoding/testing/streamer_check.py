"""The contract checks of a streamer."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..results.events import MAX_LENGTH, Event
from ..results.streamers import ClosedError, listener, takes_events
from ..validation import as_real, is_whole
from .assertions import require

_PROMPT = (5, 3)


def check_streamer(
    make: Callable[[], Any],
    *,
    rows: int = 1,
    generations: int = 1,
    text_required: bool = False,
    block_seconds: float = 30.0,
) -> None:
    """
    Check streamers against the contract of :class:`~..results.streamers.Streamer`.

    Streamers are told of generations as a generator tells them: with and without text, with several tokens
    an event and with none, one that is closed before a row has ended, one without events, and one that fails.
    They must take every event, leave it and the prompts' order alone, never raise at the end, and return.

    Args:
        make: Makes a streamer, a new one for each generation. A streamer is an object with ``put_event`` and
            ``end``, or one with ``put`` and ``end`` as Hugging Face's have.

        rows: Prompts; a Hugging Face streamer takes one.

        generations: The number of generations in sequence that one streamer takes. The protocol requires one.

        text_required: Whether it shows text, and so needs a generator with a tokenizer. Otherwise it must
            take events without text too.

        block_seconds: A generation that has not ended after so long counts as blocked.

    Raises:
        AssertionError: A rule is broken; the message says what was fed, what came, and the rule.

        TypeError: *make* makes no streamer.

        ValueError: An option is out of range.
    """
    if not callable(make):
        raise TypeError(f"'make' must make a streamer when it is called: got {make!r}")
    for name, number in {"rows": rows, "generations": generations}.items():
        if not is_whole(number) or number < 1:
            raise ValueError(f"'{name}' must be a whole number >= 1: got {number!r}")
    if not isinstance(as_real(block_seconds), float) or not as_real(block_seconds) > 0:
        raise ValueError(f"'block_seconds' must be a number > 0: got {block_seconds!r}")
    listener(make(), [list(_PROMPT)] * rows)
    for text in (True,) if text_required else (True, False):
        events = _events(rows, text=text)
        for case, shown, error in (
            ("a complete generation", events, None),
            ("a generation that is closed early", events[:rows], None),
            ("a generation without events", [], None),
            ("a generation that fails", events[:rows], RuntimeError("the decoder failed")),
        ):
            streamer = make()
            for number in range(1, generations + 1):
                name = case if generations == 1 else f"{case}, the streamer's number {number}"
                _tell(streamer, name, shown, rows, error, float(block_seconds))


def _events(rows: int, *, text: bool) -> list[Event]:
    """Some events of every row, several tokens or none in some; the last ends the row."""
    shown: list[Event] = []
    for ids, piece, finish in (
        ((7,), "a <b>", None),
        ((8, 9), "", None),
        ((6,), " c\n", None),
        ((), "d", MAX_LENGTH),
    ):
        shown += [Event(row, ids, piece if text else None, finish) for row in range(rows)]
    return shown


def _tell(
    streamer: Any, case: str, events: Sequence[Event], rows: int, error: BaseException | None, seconds: float
) -> None:
    """One generation, told in a thread of its own."""
    trouble: list[BaseException] = []
    doing = [""]

    def generation() -> None:
        try:
            _generation(streamer, case, events, rows, error, doing)
        except BaseException as raised:
            trouble.append(raised)

    thread = threading.Thread(target=generation, daemon=True)
    thread.start()
    thread.join(seconds)
    require(
        not thread.is_alive(),
        f"a streamer must not block the generation: {case}, fed {doing[0]}; "
        f"came: no return within {seconds} s",
    )
    if trouble:
        raise trouble[0]


def _generation(
    streamer: Any,
    case: str,
    events: Sequence[Event],
    rows: int,
    error: BaseException | None,
    doing: list[str],
) -> None:
    prompts = [list(_PROMPT) for _ in range(rows)]
    told = listener(streamer, prompts)

    def call(what: str, tell: Callable[..., None], *given: Any) -> bool:
        doing[0] = what
        try:
            tell(*given)
        except ClosedError:
            return False
        except Exception as raised:
            rule = "a streamer must take every event, and raise ClosedError only where its consumer has gone"
            if tell in (told.end, told.fail):
                rule = "a streamer must not raise at the end"
            raise AssertionError(f"{rule}: {case}, fed {what}; came: {raised!r}") from raised
        return True

    open_ = call(f"begin({prompts})" if takes_events(streamer) else f"put(prompt {prompts[0]})", told.begin)
    for event in events:
        if not open_:
            break
        before = (event.row, event.ids, event.text, event.finish, event.logprobs)
        open_ = call(f"{event!r}", told.put_event, event)
        after = (event.row, event.ids, event.text, event.finish, event.logprobs)
        rule = "a streamer must not change an event, which others receive too"
        require(before == after, f"{rule}: {case}, fed {Event(*before)!r}; came: {event!r}")
    if error is None:
        call("end()", told.end)
    else:
        call(f"fail({error!r})", told.fail, error)
