"""The options of a submission, and the requests that it makes."""

import math
from collections.abc import Sequence

import attrs

from ..engine.parts import Parts, begin_run, texts_of
from ..prompts import first_history
from ..results.logprobs import Logprobs
from ..results.statistics import Statistics
from ..results.timers import Timers
from ..sampling import noise
from ..text.per_tokenizer import tokenizers_unchanged
from ..token_feeder import TokenFeeder
from ..validation import as_real, is_whole, stream_numbers
from .batched_request import BatchedRequest
from .row_pin import RowPin


@attrs.frozen(kw_only=True)
class RequestOptions:
    """
    What is said of a request beside its parts and prompts; see :meth:`.batcher.Batcher.submit`.

    Raises:
        TypeError: A wrong type.

        ValueError: A number is out of range.
    """

    priority: float
    timeout: float | None
    logprobs: Logprobs | None
    max_unread: int | None
    pin: RowPin | None = None

    def __attrs_post_init__(self) -> None:
        """Check each option."""
        if self.max_unread is not None and (not is_whole(self.max_unread) or self.max_unread < 1):
            raise ValueError(f"'max_unread' must be a whole number >= 1: got {self.max_unread!r}")
        if not isinstance(as_real(self.priority), float):
            raise TypeError(f"'priority' must be a number: got {self.priority!r}")
        if math.isnan(self.priority):
            raise ValueError(f"'priority' must not be NaN: got {self.priority!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"'timeout' must be > 0 seconds, or None: got {self.timeout!r}")
        if self.pin is not None and not isinstance(self.pin, RowPin):
            raise TypeError(f"'pin' must be a RowPin, or None: got {self.pin!r}")

    @tokenizers_unchanged()
    def requests(
        self,
        parts: Parts,
        prompts: Sequence[list[int]],
        streams: Sequence[int],
        seed: int,
        feeder: TokenFeeder,
        bit_exact: bool | None,
    ) -> list[BatchedRequest]:
        """
        A request of one row for each of *prompts*.

        Args:
            parts: Of all of them; each begins its own run.

            prompts: Their ids.

            streams: The number of each one's random stream.

            seed: Folded into the streams.

            feeder: Feeds the decoder.

            bit_exact: What their statistics say.

        Raises:
            ValueError: A part cannot share a decoder.
        """
        made = []
        for row, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
            # Room for new tokens is in the table: thousands of requests may wait.
            history = first_history(
                [prompt], noise.random_streams(stream_numbers([stream], 1), seed), len(prompt)
            )
            timers = Timers(Statistics(bit_exact=bit_exact))
            run = begin_run(parts, feeder, 1, timers, self.logprobs, prompt_number=row)
            run.require_shareable()
            texts = texts_of(parts, history)
            made.append(
                BatchedRequest(
                    run=run,
                    history=history,
                    text=None if texts is None else texts[0],
                    row=row,
                    priority=self.priority,
                    timeout=self.timeout,
                    max_unread=self.max_unread,
                    pin=self.pin,
                )
            )
        return made
