"""Beam search."""

from typing import Any

import attrs
from attrs import validators

from ...validation import a_whole_number, as_real, as_whole, one_real
from .beam_stop import PromptStop
from .best_beams import BestBeams
from .strategy import BeamStrategy


def _when_to_end(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not isinstance(value, bool) and value != "never":
        raise ValueError(f"'{attribute.name}' must be True, False or 'never': got {value!r}")


@attrs.frozen(eq=False, kw_only=True)
class BeamSearch(BeamStrategy):
    """
    Find the sequences of the largest log-probability, as far as *beams* alternatives at a time can.

    With the same settings it finds the sequences and scores of transformers' ``generate(num_beams=beams)``.
    Only sequences of a positive probability count: where a constraint leaves fewer than *beams*,
    transformers fills up with forbidden ones. One beam is greedy decoding with a score.

    The form of the textbooks, which compares plain sums and stops when no beam can still win, is
    ``length_penalty=0.0, early_stopping="never"``. It is exact if no beam was dropped.
    """

    num_return: int = attrs.field(default=1, converter=as_whole, validator=[a_whole_number, validators.ge(1)])
    """The number of sequences of each prompt to return, the best ones, at most *beams*."""

    length_penalty: float = attrs.field(
        default=1.0, converter=as_real, validator=one_real("from -32 to 32", lambda value: abs(value) <= 32)
    )
    """
    The exponent of the length by which a sum of log-probabilities is divided; the length is that of the new
    tokens, the end token included. 0.0 is neutral; larger values prefer longer sequences; usually -1 to 2.
    """

    early_stopping: bool | str = attrs.field(default=False, validator=_when_to_end)
    """
    When a prompt is finished, once *beams* sequences have ended. True: at once. False: when the best beam,
    with its score as it is, is no better than the worst of them. ``"never"``: when it cannot become better
    with more tokens; with a positive length penalty, at the largest length.
    """

    def __attrs_post_init__(self) -> None:
        """Check that the parts fit together, and the decoder."""
        super().__attrs_post_init__()
        if self.num_return > self.beams:
            raise ValueError(
                f"'num_return' must be at most {self.beams}, the number of beams: got {self.num_return}"
            )

    @property
    def _returned(self) -> int:
        return self.num_return

    def _run_seed(self) -> int:
        # As with a greedy sampler: for processors that draw random numbers.
        return 0

    def _begin(self, stop: PromptStop, prompt: int, stream: int) -> BestBeams:
        looked_at = max(2, 1 + len(self._stop.end_tokens)) * self.beams
        return BestBeams(self.beams, self.length_penalty, self.early_stopping, stop, looked_at)
