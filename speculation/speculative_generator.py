"""A generator that always drafts."""

import attrs

from ..decoding.generator import Generator
from ..decoding.protocols import Drafter


@attrs.frozen(eq=False)
class SpeculativeGenerator(Generator):
    """
    A :class:`~decodekit.decoding.generator.Generator` with a drafter running ahead.

    With the default verification it gives, token for token, what the same generator gives
    without a drafter, given equal logits.
    """

    drafter: Drafter = attrs.field()
    """What guesses ahead: :class:`DraftModel`, :class:`PromptLookup`, or an object of yours."""

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot work together, and None."""
        if self.drafter is None:
            raise TypeError("'drafter' must have propose(history, budget, choose): got None")
        super().__attrs_post_init__()
