"""Where a beam ends."""

import itertools
from collections.abc import Iterator
from typing import cast

import attrs

from ...optional_protocols import TokenCode
from ...protocols import Finish, StopCondition
from ...results.events import MAX_LENGTH
from ...stopping.composition import AnyOf, by_token
from ...stopping.end_of_sequence import EndOfSequence
from ...stopping.max_length import MaxLength
from ...stopping.max_new_tokens import MaxNewTokens
from ...stopping.stop_tokens import StopTokens
from .beam import Beam


@attrs.frozen(eq=False)
class BeamStop:
    """
    A stop condition of end tokens and limits.

    It is asked about more candidates than there are rows, most of which are dropped. So it may depend
    on a candidate's last token and length alone, not on text, time, or distributions.

    Raises:
        ValueError: It depends on more.
    """

    condition: StopCondition = attrs.field()
    end_tokens: frozenset[int] = attrs.field(init=False)
    """The tokens that end a beam."""

    _code: TokenCode = attrs.field(init=False, repr=False)
    _finishes: tuple[Finish, ...] = attrs.field(init=False, repr=False)

    @condition.validator
    def _check(self, attribute: "attrs.Attribute[StopCondition]", condition: StopCondition) -> None:
        for part in _alternatives(condition):
            if type(part) not in (EndOfSequence, StopTokens, MaxNewTokens, MaxLength):
                raise ValueError(
                    "'stop' of beams must consist of EndOfSequence, StopTokens, MaxNewTokens and MaxLength, "
                    f"joined with |: got {part!r}"
                )

    @end_tokens.default
    def _tokens(self) -> frozenset[int]:
        found = (part.ids for part in _alternatives(self.condition) if isinstance(part, StopTokens))
        return frozenset(itertools.chain.from_iterable(found))

    @_code.default
    def _code_by_token(self) -> TokenCode:
        # Each of these conditions has this short cut. Otherwise, the validator raises next.
        return cast(TokenCode, by_token(self.condition))

    @_finishes.default
    def _finishes_of_the_condition(self) -> tuple[Finish, ...]:
        return self.condition.finishes

    def of_prompt(self, row: int, length: int, positions: int) -> "PromptStop":
        """
        Where the beams of one prompt end.

        Args:
            row: The prompt's number, of which the limits of several rows have one each.

            length: Its tokens.

            positions: The positions of the decoder's cache; the last token needs none.
        """
        most = positions + 1 - length
        for part in _alternatives(self.condition):
            if isinstance(part, MaxNewTokens | MaxLength):
                limit = int(part.n[row if len(part.n) > 1 else 0])
                most = min(most, limit if isinstance(part, MaxNewTokens) else max(1, limit - length))
        return PromptStop(self._code, self._finishes, row, length, most)


@attrs.frozen(eq=False)
class PromptStop:
    """Where the beams of one prompt end."""

    _code: TokenCode
    _finishes: tuple[Finish, ...]
    _row: int
    _prompt: int
    most: int
    """The largest number of new tokens, at least 1."""

    def __call__(self, beam: Beam) -> Finish | None:
        """Why *beam* ends with its last token; None if it goes on."""
        code = self._code(beam.token, self._prompt + beam.length, self._prompt, self._row)
        if code:
            return self._finishes[code - 1]
        return MAX_LENGTH if beam.length >= self.most else None


def _alternatives(condition: StopCondition) -> Iterator[StopCondition]:
    """The conditions of which any ends a row."""
    if type(condition) is AnyOf:
        for part in condition.conditions:
            yield from _alternatives(part)
    else:
        yield condition
