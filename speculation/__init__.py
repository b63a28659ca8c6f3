"""Drafts that run ahead of the target, and what is done with them."""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from .adaptive_length import AdaptiveLength
    from .block import Block
    from .common_tokens import CommonTokens
    from .draft_model import DraftModel
    from .draft_tree import DraftTree
    from .exactness import check_exactness
    from .forced_tokens import ForcedTokens
    from .mixture import Mixture
    from .prompt_lookup import PromptLookup
    from .rejection import Rejection
    from .retokenized_draft import RetokenizedDraft
    from .speculative_generator import SpeculativeGenerator
    from .suffix_automaton import SuffixAutomaton
    from .tree import Tree
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".adaptive_length": "AdaptiveLength",
            ".block": "Block",
            ".common_tokens": "CommonTokens",
            ".draft_model": "DraftModel",
            ".draft_tree": "DraftTree",
            ".exactness": "check_exactness",
            ".forced_tokens": "ForcedTokens",
            ".mixture": "Mixture",
            ".prompt_lookup": "PromptLookup",
            ".rejection": "Rejection",
            ".retokenized_draft": "RetokenizedDraft",
            ".speculative_generator": "SpeculativeGenerator",
            ".suffix_automaton": "SuffixAutomaton",
            ".tree": "Tree",
        },
    )

__all__ = [
    "AdaptiveLength",
    "Block",
    "CommonTokens",
    "DraftModel",
    "DraftTree",
    "ForcedTokens",
    "Mixture",
    "PromptLookup",
    "Rejection",
    "RetokenizedDraft",
    "SpeculativeGenerator",
    "SuffixAutomaton",
    "Tree",
    "check_exactness",
]
