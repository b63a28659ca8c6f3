"""The rows of a decoder as beams of several prompts."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ...history import History
from ...protocols import Finish
from ...results.timers import Timers
from ...sampling.pipeline import SamplingPipeline
from ...token_feeder import Fed, TokenFeeder
from .columns import columns_of_children
from .prompt_search import PromptSearch
from .seat import Scored, Seat


class BeamTable:
    """
    Feeds the beams of several prompts, runs the processors, and moves beams between rows.

    Each prompt has a seat of as many rows as it may have beams. To processors a seat is one row, and its
    beams are the columns, each on a path of its own: so a parameter with a value for each row has one for
    each prompt, and one call serves all beams.

    Args:
        feeder: Feeds the decoder.

        seats: The number of seats.

        beams: The number of rows of each; all seats must fit into the decoder.

        together: Its processors serve all seats in one call. None: each seat has its own pipeline.

        exact_width: As in a feed.

        timers: The run's.
    """

    def __init__(
        self,
        feeder: TokenFeeder,
        seats: int,
        beams: int,
        *,
        together: SamplingPipeline | None,
        exact_width: bool,
        timers: Timers,
    ) -> None:
        self.seats: list[Seat | None] = [None] * seats
        self._feeder, self._timers = feeder, timers
        self._together, self._exact_width = together, exact_width
        # Not inference tensors, in any mode of the caller: later steps write to them.
        with torch.inference_mode(False):
            self._ids = torch.zeros(seats, beams, feeder.shape.max_length + 1, dtype=torch.int64)
            self._prompt = torch.ones(seats, dtype=torch.int64)
            self._stream = torch.zeros(seats, dtype=torch.int64)
        self._source = list(range(feeder.shape.batch_size))
        """The row that each is to be a copy of before the next feed."""

        with feeder.lock:
            # Nothing is to be copied, but the answer is whether rows can be.
            self._copies = feeder.copy_rows(self._source)

    def take(
        self,
        number: int,
        search: PromptSearch,
        prompt: list[int],
        stream: int,
        pipeline: SamplingPipeline,
    ) -> None:
        """Begin the *search* for one *prompt* in the free seat of that *number*."""
        self._ids.numpy()[number, :, : len(prompt)] = prompt
        # Not in place: a part may keep the tensors of an earlier step.
        self._prompt, self._stream = self._prompt.clone(), self._stream.clone()
        self._prompt[number], self._stream[number] = len(prompt), stream
        self.seats[number] = Seat(number, search, len(prompt), len(prompt), [0], pipeline)

    def step(self) -> list[Seat]:
        """
        Extend all beams by one token.

        Returns:
            The seats whose search is over; they are free from now on.
        """
        seats = [seat for seat in self.seats if seat is not None]
        history = self._seen(seats)
        # The logits of a step are valid until the next forward by any user.
        with self._feeder.lock, torch.no_grad():
            fed = self._fed(seats, history)
            self._feeder.logits_in_use = True
            try:
                with self._timers.phase("sample"):
                    # Columns without a beam are undefined.
                    raw = fed.logits.reshape(*history.length.shape, -1)
                    for seat, scored in self._processed(seats, _log_probs(raw, seats), history):
                        self._extend(seat, scored)
            finally:
                self._feeder.logits_in_use = False
        over = [seat for seat in seats if not seat.search.beams]
        for seat in over:
            self.seats[seat.number] = None
        return over

    def _seen(self, seats: list[Seat]) -> History:
        """The tokens before each column; before one without a beam the prompt's."""
        length = np.repeat(self._prompt.numpy()[:, None], self._ids.shape[1], axis=1)
        for seat in seats:
            length[seat.number, seat.columns] = seat.length
        return History(self._ids, torch.from_numpy(length), self._prompt, self._stream)

    def _fed(self, seats: list[Seat], history: History) -> Fed:
        """The forwards of a step, in which each beam is a row."""
        feeder, statistics, (count, beams, _) = self._feeder, self._timers.statistics, history.ids.shape
        rows = History(
            history.ids.view(count * beams, 1, -1),
            history.length.view(-1, 1),
            history.prompt.repeat_interleave(beams),
            history.random_stream.repeat_interleave(beams),
        )
        length, need = history.length.view(-1), torch.zeros(count, beams, dtype=torch.int64)
        new = [seat for seat in seats if not seat.fed]
        for seat in seats:
            # Where rows cannot be copied, the prompt is fed into all of them in the same forwards.
            need[seat.number, seat.columns if seat.fed or self._copies else slice(None)] = 1
        before, copied = feeder.counts, list(feeder.copied)
        with self._timers.phase("target" if len(new) < len(seats) else "prefill"):
            self._copy_rows()
            missing = feeder.missing(rows, length).tolist() if new else []
            fed = feeder.feed(rows, length, need.view(-1), exact_width=self._exact_width)
        for seat in new:
            row = seat.number * beams
            statistics.reused += seat.length - max(1, missing[row]) + feeder.copied[row] - copied[row]
            seat.fed = True
        statistics.record_feed(feeder.counts.since(before), begun=len(new) < len(seats))
        return fed

    def _copy_rows(self) -> None:
        """Move what the beams' rows hold; where that is impossible, it is fed again."""
        same = list(range(len(self._source)))
        if self._source != same:
            self._feeder.copy_rows(self._source)
            self._source = same

    def _processed(
        self, seats: list[Seat], log_probs: Tensor, history: History
    ) -> Iterator[tuple[Seat, Scored]]:
        """Run the processors."""
        if self._together is not None:
            processed = _run(self._together, log_probs, history)
            for seat in seats:
                yield seat, Scored(log_probs, processed, history, seat.number)
            return
        for seat in seats:
            row = slice(seat.number, seat.number + 1)
            own, seen = log_probs[row], history.rows(row)
            yield seat, Scored(own, _run(seat.pipeline, own, seen), seen, 0)

    def _extend(self, seat: Seat, scored: Scored) -> None:
        """Extend the beams of one seat, and place their children."""

        def explain(beam: int) -> Finish:
            pipeline = seat.pipeline if self._together is None else self._together
            return pipeline.finish_without_token(scored.log_probs, scored.history, scored.row, columns[beam])

        columns = seat.columns
        # On a device, the logits of the beams alone are copied to the host.
        children = seat.search.extend(scored.processed[scored.row, columns].cpu(), explain)
        parents = [columns[index] for index in children]
        ids, first = self._ids.numpy()[seat.number], seat.number * self._ids.shape[1]
        seat.columns = columns_of_children(parents, ids[:, : seat.length])
        # All at once: a column may be parent and child.
        ids[seat.columns, : seat.length] = ids[parents, : seat.length]
        ids[seat.columns, seat.length] = [beam.token for beam in seat.search.beams]
        for column, parent in zip(seat.columns, parents, strict=True):
            self._source[first + column] = first + parent
        seat.length += 1


def _run(pipeline: SamplingPipeline, log_probs: Tensor, history: History) -> Tensor:
    processed = pipeline.after(len(pipeline.stages), log_probs, history)
    return processed.masked_fill(processed.isnan(), -torch.inf)


def _log_probs(raw: Tensor, seats: list[Seat]) -> Tensor:
    """The log-softmax of *raw* logits; uniform in columns without a beam, whose logits are undefined."""
    idle = torch.ones(raw.shape[:2], dtype=torch.bool)
    for seat in seats:
        idle[seat.number, seat.columns] = False
    if idle.any():
        raw = raw.masked_fill(idle[..., None].to(raw.device), 0.0)
    return (raw.float() if torch.finfo(raw.dtype).bits < 32 else raw).log_softmax(dim=-1)
