"""The spaces that some tokenizers take out of their text again, taken out piece by piece."""

from typing import Any

import attrs

_WITH_SPACES = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What ``clean_up_tokenization`` of transformers looks for, in its order; each loses its outer spaces."""


def cleans_up(tokenizer: Any) -> bool:
    """Whether ``tokenizer.decode`` takes out spaces before punctuation, if nothing else is asked for."""
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # Since version 5 this setting does nothing for BPE, unless a second one insists; 4 has no such.
    insists = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    return type(getattr(backend, "model", None)).__name__ != "BPE" or getattr(tokenizer, insists, True)


def _all_held_nothing() -> list[str]:
    return [""] * len(_WITH_SPACES)


@attrs.define(eq=False)
class CleanUp:
    """
    Take the spaces out of a text that comes in pieces.

    The replacements run one behind the other, and each holds the end of what it is given while
    that is the beginning of what it looks for: a space, mostly.
    """

    _held: list[str] = attrs.field(factory=_all_held_nothing)

    def push(self, text: str) -> str:
        """Take the next piece, and return what has become final."""
        for stage in range(len(_WITH_SPACES)):
            text = self._replace(stage, text)
        return text

    def flush(self) -> str:
        """What was held; the text has ended."""
        text = ""
        for stage in range(len(_WITH_SPACES)):
            text = self._replace(stage, text) + self._held[stage]
            self._held[stage] = ""
        return text

    def peek(self, text: str) -> str:
        """What would come if the text ended behind *text*."""
        other = CleanUp(self._held.copy())
        return other.push(text) + other.flush()

    def _replace(self, stage: int, text: str) -> str:
        sought = _WITH_SPACES[stage]
        *before, last = (self._held[stage] + text).split(sought)
        held = next(n for n in reversed(range(len(sought))) if last.endswith(sought[:n]))
        self._held[stage] = last[len(last) - held :]
        return sought.strip().join([*before, last[: len(last) - held]])
