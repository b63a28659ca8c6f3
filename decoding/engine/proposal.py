"""A proposal: the draft of one request in one step."""

import attrs

from ..protocols import Draft
from .active_request import ActiveRequest
from .drafting import Drafting
from .evidence import Outlook


@attrs.frozen(eq=False)
class Proposal:
    """What a request asks its drafter for in one step, and the draft."""

    rows: list[int]
    """The rows that may draft: those that have their first token and have not ended."""

    lengths: list[int]
    """The draft length of each of *rows*; where all are 0, the drafter was not called."""

    draft: Draft
    """The draft of all of the request's rows."""

    outlook: Outlook | None = None
    """What the drafter says of drafts for *rows*; None if the length does not depend on it."""

    catching_up: tuple[bool, ...] | None = None
    """Whether the drafter was fed missing tokens of each of *rows*; None if of none."""

    @property
    def allowed(self) -> int:
        """The longest draft that was asked for."""
        return max(self.lengths, default=0)


@attrs.frozen(eq=False)
class Question:
    """A proposal that a drafter is still to be asked for."""

    request: ActiveRequest

    drafting: Drafting

    proposal: Proposal
    """What is asked for, with an empty draft."""
