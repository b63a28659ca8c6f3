"""Drafts that run ahead of the target, and what is done with them."""

from .draft_model import DraftModel
from .prompt_lookup import PromptLookup
from .speculative_generator import SpeculativeGenerator

__all__ = ["DraftModel", "PromptLookup", "SpeculativeGenerator"]
