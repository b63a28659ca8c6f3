"""A call with more prompts than the decoder has rows."""

from collections.abc import Iterator

from ..engine.parts import Parts, begin_run, texts_of
from ..engine.turn_checks import check_one_value
from ..history import History
from ..results.events import Event, EventStream
from ..results.logprobs import Logprobs
from ..results.timers import Timers
from ..text.per_tokenizer import tokenizers_unchanged
from ..token_feeder import TokenFeeder
from .batched_request import BatchedRequest
from .prefill_pace import prefill_pace
from .request_table import RequestTable
from .waiting_line import WaitingLine


def events_of_many(
    parts: Parts,
    feeder: TokenFeeder,
    history: History,
    timers: Timers,
    logprobs: Logprobs | None,
    exact_width: bool,
) -> EventStream:
    """
    The events of a call whose prompts take turns on the decoder's rows.

    Args:
        parts: Of every prompt; each begins its own run, of one row.

        feeder: Feeds the decoder.

        history: The prompts, any number of rows.

        timers: The call's.

        logprobs: Which log-probabilities to record; None for none.

        exact_width: Whether every token goes through one program.

    Raises:
        ValueError: A part cannot share a decoder, such as a drafter that grows trees, or a processor has a
            value for each row.
    """
    # All have the same priority, so that the order is that of the prompts.
    table = RequestTable(feeder, timers, prefill_pace(feeder), WaitingLine(1.0), exact_width)
    with tokenizers_unchanged():
        table.waiting.add(_requests(parts, feeder, history, timers, logprobs))
    return _events(table, parts, timers)


def _requests(
    parts: Parts, feeder: TokenFeeder, history: History, timers: Timers, logprobs: Logprobs | None
) -> Iterator[BatchedRequest]:
    first, prompts = history.rows(slice(0, 1)), len(history.length)
    check_one_value(parts.processors, feeder.shape.vocab_size, first, prompts)
    texts = texts_of(parts, history)
    for row in range(prompts):
        run = begin_run(parts, feeder, 1, timers, logprobs, first_row=row, prompt_number=row)
        run.require_shareable()
        text = None if texts is None else texts[row]
        yield BatchedRequest(run=run, history=history.rows(slice(row, row + 1)), text=text, row=row)


def _events(table: RequestTable, parts: Parts, timers: Timers) -> EventStream:
    # The parts keep the decoder alive while it runs, which the feeder does not.
    while parts and (table.seated or table.waiting):
        for _, news in table.step():
            if not isinstance(news, Event):
                raise news
            with timers.paused():
                yield news
