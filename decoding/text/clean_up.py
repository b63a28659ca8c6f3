"""Incremental clean-up of spaces, as some tokenizers do in ``decode``."""

from typing import Any

import attrs

_WITH_SPACES = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""The strings that transformers' ``clean_up_tokenization`` strips of outer spaces, in its order."""


def cleans_up(tokenizer: Any) -> bool:
    """Whether ``tokenizer.decode`` removes spaces before punctuation by default."""
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # Since version 5 it is ignored for BPE, unless a second setting, unknown to 4, insists.
    insists = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    return type(getattr(backend, "model", None)).__name__ != "BPE" or getattr(tokenizer, insists, True)


def _all_held_nothing() -> list[str]:
    return [""] * len(_WITH_SPACES)


@attrs.define(eq=False)
class CleanUp:
    """
    Remove the spaces from a text that comes in pieces.

    The replacements are applied in sequence, and each holds the end of its input while that is a
    prefix of its search string: usually a space.
    """

    _held: list[str] = attrs.field(factory=_all_held_nothing)

    def push(self, text: str) -> str:
        """Take the next piece and return the final text."""
        for stage in range(len(_WITH_SPACES)):
            text = self._replace(stage, text)
        return text

    def flush(self) -> str:
        """Return the held text; the text has ended."""
        text = ""
        for stage in range(len(_WITH_SPACES)):
            text = self._replace(stage, text) + self._held[stage]
            self._held[stage] = ""
        return text

    def peek(self, text: str) -> str:
        """The remaining text if the input ended with *text*."""
        other = CleanUp(self._held.copy())
        return other.push(text) + other.flush()

    def _replace(self, stage: int, text: str) -> str:
        sought = _WITH_SPACES[stage]
        *before, last = (self._held[stage] + text).split(sought)
        held = next(n for n in reversed(range(len(sought))) if last.endswith(sought[:n]))
        self._held[stage] = last[len(last) - held :]
        return sought.strip().join([*before, last[: len(last) - held]])
