"""A generator that always drafts."""

import attrs
from torch import nn

from ..decoding.compatibility import a_draft_length
from ..decoding.generator import Generator
from ..decoding.protocols import Decoder, Drafter, DraftLength
from ..decoding.validation import as_whole


@attrs.frozen(eq=False)
class SpeculativeGenerator(Generator):
    """
    A :class:`~decodekit.decoding.generator.Generator` with a drafter running ahead.

    With the default verification it gives, token for token, what the same generator gives
    without a drafter, given equal logits.

    For transformers-neuronx's order of arguments, (draft, target, k), there is
    :class:`decodekit.speculation.transformers_neuronx.SpeculativeGenerator`.
    """

    drafter: Drafter = attrs.field()
    """What guesses ahead: :class:`DraftModel`, :class:`PromptLookup`, or an object of yours."""

    num_draft_tokens: int | DraftLength = attrs.field(default=4, converter=as_whole, validator=a_draft_length)
    """As in any generator."""

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot work together, None, and a decoder where a drafter belongs."""
        if self.drafter is None:
            raise TypeError("'drafter' must have propose(history, budget, choose): got None")
        decodes = isinstance(self.drafter, Decoder | nn.Module)
        if decodes and not isinstance(self.drafter, Drafter):
            raise TypeError(
                "'drafter' must have propose(history, budget, choose): got a decoder, a "
                f"{type(self.drafter).__name__}. Write SpeculativeGenerator(target, DraftModel(draft), k), "
                "or import it from decodekit.speculation.transformers_neuronx for (draft, target, k)"
            )
        super().__attrs_post_init__()
