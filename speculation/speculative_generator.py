"""Generator with a required drafter."""

import attrs
from torch import nn

from ..decoding.engine.compatibility import a_draft_length
from ..decoding.generator import Generator
from ..decoding.protocols import Decoder, Drafter, DraftLength
from ..decoding.validation import as_whole


@attrs.frozen(eq=False, repr=False)
class SpeculativeGenerator(Generator):
    """
    A :class:`~decodekit.decoding.generator.Generator` with a required drafter.

    With the default verification, exact match, the output equals that of the same generator
    without a drafter, token for token, given equal logits.

    transformers-neuronx's order of arguments, (draft, target, k), is that of
    :class:`decodekit.speculation.neuronx_speculative_generator.SpeculativeGenerator`.
    """

    drafter: Drafter = attrs.field()
    """Proposes draft tokens: :class:`DraftModel`, :class:`PromptLookup`, or your own."""

    num_draft_tokens: int | DraftLength = attrs.field(default=4, converter=as_whole, validator=a_draft_length)
    """Maximum draft length per speculation step, or a policy that decides it."""

    def __attrs_post_init__(self) -> None:
        """Refuse incompatible parts, None, and a decoder in place of a drafter."""
        if self.drafter is None:
            raise TypeError("'drafter' must have propose(history, budget, sample): got None")
        decodes = isinstance(self.drafter, Decoder | nn.Module)
        if decodes and not isinstance(self.drafter, Drafter):
            raise TypeError(
                "'drafter' must have propose(history, budget, sample): got a decoder, a "
                f"{type(self.drafter).__name__}. Write SpeculativeGenerator(target, DraftModel(draft), k), "
                "or import it from decodekit.speculation.neuronx_speculative_generator for (draft, target, k)"
            )
        super().__attrs_post_init__()
