"""
Speculative decoding: drafters, verification of their drafts, draft lengths.

A draft is compared with the target in :mod:`.verification` (by distributions), or in
:mod:`~decodekit.decoding.engine.exact_match_verification` (token for token, the default).
"""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from .draft_length.adaptive_length import AdaptiveLength as AdaptiveLength
    from .draft_length.confidence_length import ConfidenceLength as ConfidenceLength
    from .drafters.common_tokens import CommonTokens as CommonTokens
    from .drafters.draft_model import DraftModel as DraftModel
    from .drafters.draft_tree import DraftTree as DraftTree
    from .drafters.forced_tokens import ForcedTokens as ForcedTokens
    from .drafters.mixture import Mixture as Mixture
    from .drafters.prompt_lookup import PromptLookup as PromptLookup
    from .drafters.retokenized_draft import RetokenizedDraft as RetokenizedDraft
    from .drafters.suffix_automaton import SuffixAutomaton as SuffixAutomaton
    from .drafters.tree import Tree as Tree
    from .exactness.exactness_check import check_exactness as check_exactness
    from .speculative_generator import SpeculativeGenerator as SpeculativeGenerator
    from .verification.block_verification import BlockVerification as BlockVerification
    from .verification.rejection_sampling import RejectionSampling as RejectionSampling
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
