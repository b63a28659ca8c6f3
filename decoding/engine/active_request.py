"""A request in the table of the decoding loop."""

import attrs
import torch

from ..protocols import Draft
from .overlap import may_run_ahead
from .run import Run


@attrs.define(eq=False)
class ActiveRequest:
    """A request that has joined a :class:`~.decode_loop.DecodeLoop`."""

    run: Run

    rows: slice
    """Its rows of the table, and of the decoder."""

    runs_ahead: bool = attrs.field(init=False)
    """Whether the next forward may be queued before it has its sample."""

    active: list[int] = attrs.field(init=False)
    """Those that have not ended, numbered within the request."""

    empty_draft: Draft = attrs.field(init=False)
    """The draft of a step without one."""

    fed: bool = attrs.field(default=False, init=False)
    """Whether it took part in a forward."""

    begun: bool = attrs.field(default=False, init=False)
    """Whether each of its rows has its first token; known where it drafts."""

    drafted: bool = attrs.field(default=False, init=False)
    """Whether its drafter has been fed what was there before the newest draft."""

    failed: bool = attrs.field(default=False, init=False)
    """Whether one of its parts raised."""

    paused: bool = attrs.field(default=False, init=False)
    """Whether steps leave it as it is."""

    @runs_ahead.default
    def _parts_run_ahead(self) -> bool:
        return may_run_ahead(self.run)

    @active.default
    def _every_row(self) -> list[int]:
        return list(range(self.num_rows))

    @empty_draft.default
    def _no_draft(self) -> Draft:
        return Draft(torch.empty(self.num_rows, 0, dtype=torch.int64))

    @property
    def num_rows(self) -> int:
        """The number of its rows."""
        count: int = self.rows.stop - self.rows.start
        return count

    def table_rows(self) -> list[int]:
        """The :attr:`active` rows, numbered within the table."""
        return [self.rows.start + row for row in self.active]
