"""A scripted decoder whose device runs queued forwards when their samples are read."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from decodekit.decoding import History, SamplingPipeline
from decodekit.decoding.scores import Scores

from .sampling_decoder import SamplingDecoder


@attrs.define(eq=False)
class Handle:
    """A queued forward: its number, and the ids once it has run."""

    decoder: "QueueingDecoder"
    number: int
    ids: Tensor | None = None

    def read(self) -> Tensor:
        """Let the device run up to this forward."""
        self.decoder.log.append(("read", self.number))
        self.decoder.before_read(self.number)
        self.decoder.run(self.number)
        assert self.ids is not None
        return self.ids.clone()


@attrs.define(eq=False)
class QueueingDecoder(SamplingDecoder):
    """Runs queued forwards in order, as late as possible; other forwards run after them."""

    async_mode: bool = True
    before_read: Callable[[int], Any] = lambda number: None
    """Called with the number of a forward before it is waited for."""

    log: list[tuple[str, int]] = attrs.field(factory=list, init=False)
    """("queue" or "read", number of the forward), in the order of the calls."""

    fed_unread: int = attrs.field(default=0, init=False)
    """Number of queued forwards that were fed a sample that had not been read."""

    _waiting: list[tuple[int, Callable[[], None]]] = attrs.field(factory=list, init=False)

    def run(self, until: int | None = None) -> None:
        """Run what is queued, up to a number or all of it."""
        while self._waiting and (until is None or self._waiting[0][0] <= until):
            self._waiting.pop(0)[1]()

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """Behind everything that is queued."""
        self.run()
        return super().forward(ids, cache_pos)

    def queue_and_sample(
        self, ids: Tensor | Handle, cache_pos: Tensor, history: History, rows: Tensor
    ) -> Handle:
        """Check what is known by now, and keep the forward for later."""
        number = sum(kind == "queue" for kind, _ in self.log)
        self.log.append(("queue", number))
        self.fed_unread += isinstance(ids, Handle) and ids.ids is None
        assert rows.shape == (self.batch_size,)
        assert history.length[rows, 0].tolist() == (cache_pos[rows] + 1).tolist()
        handle = Handle(self, number)
        # The host goes on, and may write to what it has given.
        kept = attrs.evolve(history, ids=history.ids.clone(), length=history.length.clone())
        given = ids.clone() if isinstance(ids, Tensor) else ids
        self._waiting.append((number, lambda: self._late(handle, given, cache_pos, kept, rows)))
        return handle

    def _late(
        self, handle: Handle, given: Tensor | Handle, cache_pos: Tensor, history: History, rows: Tensor
    ) -> None:
        ids = given.ids if isinstance(given, Handle) else given
        assert ids is not None
        logits = super().forward(ids.masked_fill(~rows[:, None], -1), cache_pos)
        # Idle rows are undefined.
        sampled = torch.full((self.batch_size, 1), self.shape.vocab_size - 1)
        for row in (rows & (ids[:, 0] >= 0)).nonzero().flatten().tolist():
            pipeline = SamplingPipeline(self.processors, self.sampler)
            sampled[row] = pipeline(logits[row : row + 1], history.rows(slice(row, row + 1)))[0][0]
        handle.ids = sampled

    def forward_and_sample(self, ids: Tensor, cache_pos: Tensor, history: History) -> tuple[Tensor, Scores]:
        """Behind everything that is queued."""
        self.run()
        return super().forward_and_sample(ids, cache_pos, history)
