"""A request of one prompt that shares a decoder with others."""

import time
from typing import TYPE_CHECKING

import attrs

from ..engine.active_request import ActiveRequest
from ..engine.run import Run
from ..history import History
from ..protocols import Finish
from ..results.events import Event, StepOutput
from .request_statistics import SeatedTime
from .row_pin import RowPin

if TYPE_CHECKING:
    from ..results.row_text import RowText

CANCELLED = Finish("cancelled")
"""The finish of a request that was cancelled."""

TIMEOUT = Finish("timeout")
"""The finish of a request whose time was over."""


@attrs.define(eq=False, kw_only=True)
class BatchedRequest:
    """One prompt with its parts: waiting, in a row of the decoder, or ended."""

    run: Run
    """Of one row."""

    history: History
    """The prompt, ``[1, 1, capacity]``."""

    text: "RowText | None" = None
    """Its incremental text; None without a tokenizer."""

    row: int = 0
    """The row that its events name."""

    priority: float = 0.0
    """Of two requests that wait, the higher one is seated first."""

    timeout: float | None = None
    """Seconds from its submission on; None for any number."""

    pin: RowPin | None = None
    """Holds the row that it prefers."""

    submitted: float = attrs.field(factory=time.monotonic, init=False)
    """When it was submitted, in seconds of ``time.monotonic``."""

    seat: ActiveRequest | None = attrs.field(default=None, init=False)
    """Its row of the decoding loop; None while it waits and after its end."""

    seated_time: SeatedTime | None = attrs.field(default=None, init=False)
    """Its time in that row; None before."""

    begun: bool = attrs.field(default=False, init=False)
    """Whether it has its first token."""

    ending: Finish | None = attrs.field(default=None, init=False)
    """Set to end it before the next step."""

    num_events: int = attrs.field(default=0, init=False)
    """Events so far; counted by the thread that advances the requests."""

    num_read: int = attrs.field(default=0, init=False)
    """Those that its reader has taken; counted by the reader."""

    max_unread: int | None = None
    """So many events that were not read pause it; None for any number."""

    @property
    def prompt(self) -> list[int]:
        """The ids of its prompt."""
        ids: list[int] = self.history.ids[0, 0, : int(self.history.prompt[0])].tolist()
        return ids

    @property
    def must_pause(self) -> bool:
        """Whether its reader is too far behind."""
        # Read once: another thread may lift it.
        most = self.max_unread
        return most is not None and self.num_events - self.num_read >= most

    def due(self, now: float) -> Finish | None:
        """The finish that is to end it *now*, if any."""
        if self.ending is None and self.timeout is not None and now - self.submitted >= self.timeout:
            return TIMEOUT
        return self.ending

    def event(self, output: StepOutput) -> Event:
        """The event of a step."""
        self.begun = True
        text = None if self.text is None else self.text.push(output.ids, output.finish)
        self.run.timers.touch()
        return Event(self.row, output.ids, text, output.finish, output.logprobs)

    def last_event(self, finish: Finish) -> Event:
        """The event of an end between steps."""
        return self.event(StepOutput(0, (), finish, None if self.run.recorder is None else ()))
