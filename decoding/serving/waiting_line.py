"""The order in which waiting requests are seated."""

import heapq
import itertools
from collections.abc import Iterable, Iterator

import attrs

from .batched_request import BatchedRequest


@attrs.define(eq=False)
class WaitingLine:
    """
    Requests that wait for a row: by priority, then by arrival. Iteration is in the order of arrival.

    A priority grows by 1 with every *ageing* seconds of waiting, so that no request waits for ever behind
    others of higher priority.
    """

    ageing: float
    """Seconds, above 0."""

    _waiting: dict[BatchedRequest, None] = attrs.field(factory=dict, init=False)
    """In the order of arrival."""

    _ranks: list[tuple[float, int, BatchedRequest]] = attrs.field(factory=list, init=False)
    """
    A heap with the next request first.

    Requests that were removed may still be in it, and, after an interrupt of :meth:`add`, one twice.
    """

    _arrivals: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    def __len__(self) -> int:
        """The number of requests."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[BatchedRequest]:
        """The requests, in the order of arrival."""
        return iter(self._waiting)

    def add(self, requests: Iterable[BatchedRequest]) -> None:
        """Let *requests* wait, the first one first."""
        for request in requests:
            # All priorities grow alike, so that the order of two requests does not change with time.
            rank = request.submitted / self.ageing - request.priority
            heapq.heappush(self._ranks, (rank, next(self._arrivals), request))
            self._waiting[request] = None

    def remove(self, request: BatchedRequest) -> None:
        """Take out a *request* that is not to be seated."""
        del self._waiting[request]
        # Not in each call: many are taken out one after the other when all are cancelled.
        if len(self._ranks) > 2 * len(self._waiting):
            self._ranks = [entry for entry in self._ranks if entry[2] in self._waiting]
            heapq.heapify(self._ranks)

    def clear(self) -> None:
        """Take out all requests."""
        self._waiting.clear()
        self._ranks.clear()

    def next(self) -> BatchedRequest:
        """Take out the request that is to be seated first."""
        while True:
            _, _, request = heapq.heappop(self._ranks)
            if request in self._waiting:
                del self._waiting[request]
                return request
