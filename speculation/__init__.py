"""
Speculative decoding: drafters, verification of their drafts, draft lengths.

A draft is compared with the target in :mod:`.verification` (by distributions), or in
:mod:`~decodekit.decoding.engine.exact_match` (token for token, the default).
"""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from .draft_length.adaptive_length import AdaptiveLength
    from .drafters.common_tokens import CommonTokens
    from .drafters.draft_model import DraftModel
    from .drafters.draft_tree import DraftTree
    from .drafters.forced_tokens import ForcedTokens
    from .drafters.mixture import Mixture
    from .drafters.prompt_lookup import PromptLookup
    from .drafters.retokenized_draft import RetokenizedDraft
    from .drafters.suffix_automaton import SuffixAutomaton
    from .drafters.tree import Tree
    from .exactness.exactness_check import check_exactness
    from .speculative_generator import SpeculativeGenerator
    from .verification.block_verification import BlockVerification
    from .verification.rejection_sampling import RejectionSampling
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".draft_length.adaptive_length": "AdaptiveLength",
            ".verification.block_verification": "BlockVerification",
            ".drafters.common_tokens": "CommonTokens",
            ".drafters.draft_model": "DraftModel",
            ".drafters.draft_tree": "DraftTree",
            ".exactness.exactness_check": "check_exactness",
            ".drafters.forced_tokens": "ForcedTokens",
            ".drafters.mixture": "Mixture",
            ".drafters.prompt_lookup": "PromptLookup",
            ".verification.rejection_sampling": "RejectionSampling",
            ".drafters.retokenized_draft": "RetokenizedDraft",
            ".speculative_generator": "SpeculativeGenerator",
            ".drafters.suffix_automaton": "SuffixAutomaton",
            ".drafters.tree": "Tree",
        },
    )

__all__ = [
    "AdaptiveLength",
    "BlockVerification",
    "CommonTokens",
    "DraftModel",
    "DraftTree",
    "ForcedTokens",
    "Mixture",
    "PromptLookup",
    "RejectionSampling",
    "RetokenizedDraft",
    "SpeculativeGenerator",
    "SuffixAutomaton",
    "Tree",
    "check_exactness",
]
