"""The fields of a generation config that are about speculation, as parts of a generator."""

from collections.abc import Mapping
from typing import Any

from ..decoding.optional_protocols import DraftsWhile
from ..speculation import ConfidenceLength, PromptLookup

_DEFAULTS = {"num_assistant_tokens": 20, "assistant_confidence_threshold": 0.4}
"""What ``generate`` takes where a config has none, and writes into the config that it prepares."""

_NGRAM = 2
"""``max_matching_ngram_size`` of ``generate``."""


def drafting_of(config: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Drafter, draft length and verification: those that are *given*, and what the config says of others.

    ``prompt_lookup_num_tokens`` and ``max_matching_ngram_size`` make a
    :class:`~decodekit.speculation.PromptLookup`; for the draft length see :func:`with_draft_length`.

    Args:
        config: A ``transformers.GenerationConfig``.

        given: ``drafter``, ``num_draft_tokens`` and ``verification``, each if there is one.
    """
    fields, parts = vars(config), dict(given)
    if "drafter" not in parts and (k := fields.get("prompt_lookup_num_tokens")) is not None:
        parts["drafter"] = PromptLookup(max_ngram=fields.get("max_matching_ngram_size") or _NGRAM)
        parts.setdefault("num_draft_tokens", k)
    return with_draft_length(config, parts)


def with_draft_length(config: Any, parts: Mapping[str, Any]) -> dict[str, Any]:
    """
    *parts* of a generator, with a draft length from the config where they have a drafter and none.

    ``assistant_confidence_threshold`` and ``num_assistant_tokens``, where either is set to another value than
    the default of ``generate``, make a :class:`~decodekit.speculation.ConfidenceLength` for a drafter that
    can end its drafts by confidence.
    """
    if "num_draft_tokens" in parts or not isinstance(parts.get("drafter"), DraftsWhile):
        return dict(parts)
    fields = vars(config)
    found = {name: fields.get(name) for name in _DEFAULTS}
    said = {name: value for name, value in found.items() if value not in (None, _DEFAULTS[name])}
    if not said:
        return dict(parts)
    whole: Mapping[str, Any] = {**_DEFAULTS, **said}
    length = ConfidenceLength(whole["num_assistant_tokens"], whole["assistant_confidence_threshold"])
    return {**parts, "num_draft_tokens": length}
