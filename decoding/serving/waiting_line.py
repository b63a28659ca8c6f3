"""The order in which waiting requests are seated."""

import attrs

from .batched_request import BatchedRequest


@attrs.define(eq=False)
class WaitingLine:
    """
    Requests that wait for a row: by priority, then by arrival.

    A priority grows by 1 with every *ageing* seconds of waiting, so that no request waits for ever behind
    others of higher priority.
    """

    ageing: float
    """Seconds, above 0."""

    requests: list[BatchedRequest] = attrs.field(factory=list, init=False)
    """In the order of arrival."""

    def next(self, now: float) -> BatchedRequest:
        """Take out the request that is to be seated *now*, in seconds of ``time.monotonic``."""
        chosen = max(self.requests, key=lambda one: one.priority + (now - one.submitted) / self.ageing)
        self.requests.remove(chosen)
        return chosen
