"""Continuous batching: many requests, each with its own parts, on one decoder."""

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self

import attrs
from attrs import validators

from ..after_fork import told_after_fork
from ..cache.slots import feeder_of
from ..engine.compatibility import check_decoder
from ..engine.parts import Parts, check_fit, prompt_rows, seed_of
from ..optional_protocols import AnyDecoder, is_bit_exact, runs_in_lockstep
from ..results.logprobs import Logprobs
from ..results.statistics import Statistics
from ..results.streamers import listener, report_failure
from ..results.timers import Timers
from ..token_feeder import TokenFeeder
from ..validation import a_whole_number, is_whole, stream_numbers
from .batched_request import TIMEOUT, BatchedRequest
from .open_requests import OpenRequests
from .prefill_pace import prefill_pace
from .request_handle import RequestHandle
from .request_options import RequestOptions
from .request_table import RequestTable, Told
from .row_pin import RowPin
from .waiters import Waiters
from .waiting_line import WaitingLine

_LOG = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
"""How long to wait for another thread's step, or for a time-out, before looking again."""


@attrs.define(eq=False, kw_only=True, repr=False)
class Batcher:
    """
    Serve many requests with one decoder, step by step.

    A request takes a free row, has its prompt fed in chunks beside the rows that decode, and leaves its row
    to the next when it ends. Its ids, finish and log-probabilities are those of a call of its own with the
    same parts and random stream; neighbours do not change them. (A verification that compares distributions
    keeps the distribution.) A row keeps its cache: a prompt that begins like an earlier one is fed from
    there on.

    ``with Batcher(decoder) as batcher`` runs a thread (``async with`` too). Without one, reading a handle
    advances all requests.

    >>> from decodekit.decoding import Generator, MaxNewTokens
    >>> from decodekit.testing import ScriptedDecoder
    >>> import torch
    >>> decoder = ScriptedDecoder(torch.eye(5), batch_size=2)
    >>> batcher, parts = Batcher(decoder), Generator(decoder, stop=MaxNewTokens(2)).parts
    >>> handles = [batcher.submit(parts, [token]) for token in (1, 2, 3)]
    >>> [len(handle.result().ids[0]) for handle in handles]
    [2, 2, 2]
    """

    decoder: AnyDecoder = attrs.field(kw_only=False)
    """Computes the logits; its batch size is the number of requests that run at a time."""

    prefill_width: int | None = attrs.field(
        default=None, validator=validators.optional([a_whole_number, validators.ge(1)])
    )
    """
    Columns of a prompt that are fed beside rows that decode: the widest compiled width (of the row widths, if
    there are any) that is at most this, else the narrowest. Where forwards of one row skip padding, as many
    tokens. None for the widest.
    """

    max_gap: float | None = attrs.field(default=None, validator=validators.optional(validators.gt(0)))
    """
    Seconds that a step beside rows that decode may take, which bounds the columns of a prompt in it, by the
    times of earlier steps. None for any number.
    """

    max_waiting: int | None = attrs.field(
        default=None, validator=validators.optional([a_whole_number, validators.ge(1)])
    )
    """Prompts and samples that may wait for a row; None for any number."""

    ageing: float = attrs.field(default=10.0, validator=validators.gt(0))
    """Seconds of waiting that are worth a priority of 1."""

    exact_width: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """As :attr:`~..generator.Generator.exact_width`."""

    _timers: Timers = attrs.field(init=False)
    _feeder: TokenFeeder = attrs.field(init=False)
    _table: RequestTable = attrs.field(init=False)
    _checked: "weakref.WeakSet[Parts]" = attrs.field(factory=weakref.WeakSet, init=False)
    """Parts that fit the decoder."""

    _requests: OpenRequests = attrs.field(init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    _executor: ThreadPoolExecutor | None = attrs.field(default=None, init=False)
    """The thread of the steps that tasks wait for."""

    _stepping: threading.RLock = attrs.field(factory=threading.RLock, init=False)
    """
    Held by the one thread that advances the requests, once.

    It knows its holder, so that an interrupt between taking it and the next line leaves it free.
    """

    _stepper: int | None = attrs.field(default=None, init=False)
    """The number of that thread."""

    _waiters: Waiters = attrs.field(factory=Waiters, init=False)
    """Threads and tasks that wait for a handle or for room."""

    def __attrs_post_init__(self) -> None:
        """Lay out an empty table."""
        check_decoder(self.decoder)
        if runs_in_lockstep(self.decoder):
            raise ValueError(
                "'decoder' must not run in lockstep with other processes, where requests would arrive at "
                f"other steps: got {self.decoder!r}"
            )
        self._feeder = feeder_of(self.decoder)
        self._timers = Timers(Statistics(bit_exact=is_bit_exact(self.decoder)))
        pace = prefill_pace(self._feeder, self.prefill_width, self.max_gap)
        line = WaitingLine(self.ageing)
        self._table = RequestTable(self._feeder, self._timers, pace, line, self.exact_width)
        self._requests = OpenRequests(self._lock, self.decoder.shape.batch_size)
        _batchers.add(self)

    @property
    def statistics(self) -> Statistics:
        """
        Of all steps so far: forwards, columns and seconds, and the tokens and drafts of requests that ended.

        The counts by row are those of each request's own statistics.
        """
        with self._lock:
            return self._timers.statistics + self._requests.ended

    @property
    def num_waiting(self) -> int:
        """The prompts and samples that wait for a row, or for the next step."""
        return self._requests.num_arrived + len(self._table.waiting)

    def submit(
        self,
        parts: Parts,
        prompt: Any,
        *,
        random_stream: int = 0,
        num_samples: int = 1,
        priority: float = 0.0,
        timeout: float | None = None,
        streamer: Any = None,
        logprobs: Logprobs | None = None,
        max_unread: int | None = None,
        block: bool = False,
        pin: RowPin | None = None,
    ) -> RequestHandle:
        """
        Queue a request.

        Args:
            parts: A generator's :attr:`~..generator.Generator.parts`.

            prompt: One prompt, as in a call of a generator.

            random_stream: The random stream of the first sample; the others have the numbers after it.

            num_samples: How many times to continue the prompt; each sample is a row of the result.

            priority: Requests of higher priority take free rows first; see :attr:`ageing`.

            timeout: Seconds from now on, after which the request ends with the finish ``"timeout"``, also
                while it waits for room.

            streamer: Receives every event, in the thread that advances the requests: it must not block.
                What it raises ends the request.

            logprobs: Which log-probabilities to return.

            max_unread: So many events of a sample that were not read from the handle pause it, until one is
                or the :meth:`~.request_handle.RequestHandle.result` is waited for. Other requests go on, and
                it keeps its row. None for any number.

            pin: Holds a row for this request and later ones that continue its text; for one sample. None
                for none.

            block: Whether to wait, where :attr:`max_waiting` requests wait, until there is room; the other
                requests are advanced meanwhile, if no thread does.

        Raises:
            TypeError: A wrong type of an argument.

            ValueError: The prompt does not fit, a part cannot share a decoder, or there are more samples than
                there is ever room for.

            BatcherFullError: There is no room for all samples, running and waiting, and *block* is False.

            RuntimeError: The batcher is closed.
        """
        with _reporting(streamer):
            if not is_whole(num_samples) or num_samples < 1:
                raise ValueError(f"'num_samples' must be a whole number >= 1: got {num_samples!r}")
            if pin is not None and num_samples > 1:
                raise ValueError(
                    f"'num_samples' must be 1 with a pin, which holds one row: got {num_samples}"
                )
            rows = self._rows(parts, prompt)
            if len(rows) != 1:
                raise ValueError(f"a request must have one prompt: got {len(rows)}. Use submit_many()")
            first = int(stream_numbers([random_stream], 1))
            options = RequestOptions(
                priority=priority, timeout=timeout, logprobs=logprobs, max_unread=max_unread, pin=pin
            )
            streams = range(first, first + num_samples)
            return self._submit(parts, rows * num_samples, streams, options, streamer, block)

    def submit_many(
        self,
        parts: Parts,
        prompts: Any,
        *,
        random_streams: Sequence[int] | None = None,
        priority: float = 0.0,
        timeout: float | None = None,
        streamer: Any = None,
        logprobs: Logprobs | None = None,
        max_unread: int | None = None,
        block: bool = False,
    ) -> RequestHandle:
        """
        Queue several prompts as one request, with a row of the result for each: all of them or none.

        Args:
            parts: As in :meth:`submit`.

            prompts: As in a call of a generator; more than the decoder has rows take turns.

            random_streams: As in a call of a generator: 0, 1, 2, ... if not given.

            priority: As in :meth:`submit`.

            timeout: As in :meth:`submit`.

            streamer: As in :meth:`submit`.

            logprobs: As in :meth:`submit`.

            max_unread: As in :meth:`submit`.

            block: As in :meth:`submit`.

        Raises:
            TypeError, ValueError, BatcherFullError, RuntimeError: As :meth:`submit`.
        """
        with _reporting(streamer):
            rows = self._rows(parts, prompts)
            streams: list[int] = stream_numbers(random_streams, len(rows)).tolist()
            options = RequestOptions(
                priority=priority, timeout=timeout, logprobs=logprobs, max_unread=max_unread
            )
            return self._submit(parts, rows, streams, options, streamer, block)

    def step(self) -> None:
        """
        Advance all requests by one step, in this thread.

        What a part or the decoder raises is raised where the request is read.

        Raises:
            RuntimeError: A part calls this within a step.
        """
        if self._steps_here():
            raise RuntimeError("a step must not be made within a step of the same batcher")
        with self._stepping:
            self._advance()
        self.notify()

    def close(self, finish: bool = True, wait: bool = True) -> None:
        """
        Take no more requests, and end.

        Args:
            finish: Whether the requests that were submitted run to their ends first; else they are cancelled.

            wait: Whether to return only when all have ended. Without, the thread of a ``with`` block ends by
                itself. A streamer does not wait.
        """
        self._requests.close(finish)
        self.notify()
        # A part or a streamer that closes the batcher is called by the thread that would end the requests.
        if not wait or self._steps_here():
            return
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        while self._requests:
            self.step()
        if self._executor is not None:
            self._executor.shutdown()

    def __enter__(self) -> Self:
        """Advance the requests in a thread until the end of the ``with`` block."""
        with self._lock:
            if self._requests.closed or self._thread is not None:
                raise RuntimeError("a batcher runs once: make a new one")
            self._thread = threading.Thread(target=self._run, name="decodekit-batcher", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        """Finish the requests; after an exception cancel them."""
        self.close(finish=kind is None)

    async def __aenter__(self) -> Self:
        """Advance the requests in a thread until the end of the ``async with`` block."""
        return self.__enter__()

    async def __aexit__(self, kind: Any, *_: object) -> None:
        """Finish the requests; after an exception cancel them."""
        await asyncio.to_thread(self.close, kind is None)

    def __repr__(self) -> str:
        """One line: the decoder's rows, and the requests."""
        running = len(self._requests) - self.num_waiting
        return (
            f"<Batcher: {self._requests.rows} rows, {running} requests running, {self.num_waiting} waiting>"
        )

    def after_fork_in_child(self) -> None:
        """Give up the threads of the parent: none of them releases a lock here, or advances the requests."""
        self._waiters = Waiters()
        self._requests.leave_parent(self._lock)
        stepping = not self._stepping.acquire(blocking=False)
        if stepping:
            self._stepping, self._stepper = threading.RLock(), None
        else:
            self._stepping.release()
        if not stepping and self._executor is None and (self._thread is None or self._thread.is_alive()):
            return
        lost = RuntimeError(
            "a batcher must be used in the process that made it: this one was forked while another thread "
            "advanced the requests"
        )
        self._thread = self._executor = None
        for handle in self._requests.give_up():
            handle.fail(lost)

    # What a handle asks for.

    def wait_until(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """See :class:`~.request_handle.Server`."""
        until = None if timeout is None else time.monotonic() + timeout
        while not ready():
            if self._steps_here():
                raise RuntimeError(
                    "a part or a streamer must not wait for a request of the batcher that calls it, since "
                    "the request waits for that call"
                )
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"the request did not end within {timeout} seconds")
            self._wait_or_step(ready, None if until is None else until - time.monotonic())

    async def wait_in_task(self, ready: Callable[[], bool]) -> None:
        """See :class:`~.request_handle.Server`."""
        while not ready():
            with self._lock:
                if self._thread is None and self._executor is None:
                    # One thread: a compiled decoder keeps a team of workers for each thread that calls it.
                    self._executor = ThreadPoolExecutor(1, "decodekit-batcher")
                executor = self._executor if self._thread is None else None
            if executor is None:
                await self._waiters.wait_in_task(ready)
            else:
                await asyncio.get_running_loop().run_in_executor(executor, self._wait_or_step, ready)

    def notify(self) -> None:
        """See :class:`~.request_handle.Server`."""
        # Without a thread of its own any of them may make the next step.
        self._waiters.wake(everyone=self._thread is None)

    @property
    def _lock(self) -> threading.RLock:
        """Guards the handles and what arrived."""
        return self._waiters.lock

    def _wait_or_step(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """Advance the requests if no other thread does, else wait for it a while."""
        if self._thread is None:
            taken = advanced = False
            try:
                taken = self._stepping.acquire(blocking=False)
                advanced = taken and (ready() or self._advance())
            finally:
                # Whatever `taken` is: an interrupt may come before that is noted. And nothing else is called
                # before, where another interrupt would be raised.
                try:  # noqa: SIM105
                    self._stepping.release()
                except RuntimeError:
                    pass
            if taken:
                self.notify()
            if advanced:
                return
        most = _POLL_SECONDS if self._thread is None else 1.0
        self._waiters.wait(ready, most if timeout is None else min(most, timeout))

    def _steps_here(self) -> bool:
        """Whether this thread is within a step."""
        return self._stepper == threading.get_ident()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            # Such as SystemExit, raised by a part: requests would wait for a thread that has ended.
            _LOG.error("the batcher's thread has ended, and takes no more requests", exc_info=error)
            self._end_all(error)

    def _serve(self) -> None:
        while True:
            with self._stepping:
                advanced = self._advance()
            self.notify()
            with self._lock:
                if self._requests.closed and not self._requests:
                    return
                if not (advanced or self._requests.num_arrived or self._requests.has_cancelled):
                    # Requests that wait or pause may come to the end of their time.
                    self._waiters.changed.wait(_POLL_SECONDS if self._requests else None)

    def _end_all(self, error: BaseException) -> None:
        """Tell every request that the thread has ended, and take no more."""
        ended = RuntimeError(f"the batcher's thread was ended by {type(error).__name__}: {error}")
        ended.__cause__ = error
        handles = self._requests.give_up()
        self._table.clear()
        for handle in handles:
            handle.tell_streamer(ended)
            handle.fail(ended)
        self.notify()

    def _advance(self) -> bool:
        """One step; whether anything was computed."""
        forwards = self._feeder.counts.forwards
        try:
            self._stepper = threading.get_ident()
            self._timers.resume()
            # What an exception has left.
            self._requests.tell()
            self._requests.move_arrived(self._table.waiting.add)
            self._note(self._table.end_due)
            self._requests.tell()
            self._note(self._stepped)
            self._requests.tell()
        finally:
            self._stepper = None
            self._timers.touch()
        return self._feeder.counts.forwards > forwards

    def _note(self, step: Callable[[], list[Told]]) -> None:
        """Keep what *step* says of requests; an interrupt of it ends all that the table has."""
        try:
            self._requests.note(step())
        except BaseException as error:
            # It may have come between any two lines, so nothing that the table has can go on.
            self._table.clear()
            ended = RuntimeError(f"the batcher was interrupted by {type(error).__name__}: {error}")
            ended.__cause__ = error
            self._requests.note_interrupt(ended)
            raise

    def _stepped(self) -> list[Told]:
        try:
            return self._table.step()
        except Exception as error:
            return [(request, error) for request in self._table.clear()]

    def _rows(self, parts: Parts, prompts: Any) -> list[list[int]]:
        if not isinstance(parts, Parts):
            raise TypeError(f"'parts' must be a generator's .parts: got {parts!r}")
        return prompt_rows(parts, prompts, self.decoder.shape)

    def _submit(
        self,
        parts: Parts,
        rows: list[list[int]],
        streams: Sequence[int],
        options: RequestOptions,
        streamer: Any,
        block: bool,
    ) -> RequestHandle:
        """Queue a prompt for each row of the result."""
        if parts not in self._checked:
            check_fit(parts, self.decoder, self.exact_width)
            self._checked.add(parts)
        seed, bit_exact = seed_of(parts), self._timers.statistics.bit_exact
        requests = options.requests(parts, rows, streams, seed, self._feeder, bit_exact)
        told = None if streamer is None else listener(streamer, rows)
        handle = RequestHandle(self, rows, requests, seed, told)
        until = None if options.timeout is None else requests[0].submitted + options.timeout
        while not self._requests.add(requests, handle, self.max_waiting, may_wait=block):
            try:
                left = None if until is None else until - time.monotonic()
                self.wait_until(lambda: self._requests.room(self.max_waiting) >= len(requests), left)
            except TimeoutError:
                _end_unqueued(requests, handle)
                break
        self.notify()
        return handle


_batchers = told_after_fork(Batcher.after_fork_in_child)


def _end_unqueued(requests: list[BatchedRequest], handle: RequestHandle) -> None:
    """End *requests*, for which there was no room in time."""
    handle.begin_streamer()
    for request in requests:
        event = request.last_event(TIMEOUT)
        handle.tell_streamer(event)
        handle.add(event)


@contextmanager
def _reporting(streamer: Any) -> Iterator[None]:
    """Tell *streamer* what the block raises: a consumer may be waiting at its other end."""
    try:
        yield
    except BaseException as error:
        report_failure(streamer, error)
        raise
