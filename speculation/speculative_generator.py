"""Generator with a required drafter."""

import attrs
from torch import nn

from ..decoding.engine.compatibility import a_draft_length
from ..decoding.generator import Generator
from ..decoding.option_places import with_named_places
from ..decoding.optional_protocols import AnyDecoder, compares_scores, runs_in_lockstep, tree_nodes
from ..decoding.protocols import Decoder, Drafter, DraftLength
from ..decoding.validation import as_whole
from .draft_length.adaptive_length import AdaptiveLength

_LONGEST, _FIXED = 8, 4
"""Default draft lengths: the largest of an adaptive one, and a fixed one."""


@with_named_places
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

    num_draft_tokens: int | DraftLength = attrs.field(converter=as_whole, validator=a_draft_length)
    """
    Maximum draft length per speculation step, or a policy that decides it.

    By default an :class:`AdaptiveLength` of up to 8 tokens, or as many as the decoder scores columns for;
    what it learns it keeps for later calls. The default is 4 for trees, for verifications under which
    sampled text depends on the length (and so on timing), and for decoders that are divided over processes.
    """

    @num_draft_tokens.default
    def _default_length(self) -> int | DraftLength:
        # Invalid parts are refused afterwards, where they are named.
        if not isinstance(self.decoder, AnyDecoder) or tree_nodes(self.drafter) is not None:
            return _FIXED
        if compares_scores(self.verification) or runs_in_lockstep(self.decoder):
            return _FIXED
        # At least one: a decoder that scores a single column is refused, not left without drafts.
        return AdaptiveLength(max(1, min(_LONGEST, self.decoder.shape.scored_width - 1)))

    def __attrs_post_init__(self) -> None:
        """Refuse incompatible parts, None, and a decoder in place of a drafter."""
        if self.drafter is None:
            raise TypeError("'drafter' must have propose(history, budget, sample): got None")
        decodes = isinstance(self.drafter, Decoder | nn.Module)
        if decodes and not isinstance(self.drafter, Drafter):
            raise TypeError(
                "'drafter' must have propose(history, budget, sample): got a decoder, a "
                f"{type(self.drafter).__name__}. Write SpeculativeGenerator(target, DraftModel(draft), k); "
                "for (draft, target, k + 1), where k + 1 counts the target's own token, import it from "
                "decodekit.speculation.neuronx_speculative_generator"
            )
        super().__attrs_post_init__()
