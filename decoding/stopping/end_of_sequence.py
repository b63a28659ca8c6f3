"""The model's own end-of-sequence token."""

from typing import ClassVar

import attrs

from ..optional_protocols import has_short_cuts
from .stop_tokens import StopTokens


@has_short_cuts
@attrs.frozen(eq=False)
class EndOfSequence(StopTokens):
    """End a row with the model's own end-of-sequence token, or any of several."""

    reason: ClassVar[str] = "end_of_sequence"
