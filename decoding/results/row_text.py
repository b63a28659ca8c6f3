"""The text of one row, cut at its finish."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from ..history import History
from ..protocols import NO_TOKEN_LEFT, NUMERIC_OVERFLOW, Finish
from ..stopping.aho_corasick import AhoCorasick
from ..stopping.stop_sequences import TokenSequence
from ..text.detokenizer import Detokenizer
from ..text.tokenizer import common_prefix_length


@attrs.define(eq=False)
class RowText:
    """
    Detokenise one row and remove what its finish hides from the text.

    Text that may turn out to be hidden must not be shown, so the end of the text is held back as long
    as it is a prefix of a hidden string or token sequence.

    Args:
        detokenizer: A fresh one.

        finishes: All finishes that the row's stop condition can give.

        prompt: The ids of the row's prompt, if the text is to begin with it. Stop strings are not
            searched in the prompt's own text.
    """

    detokenizer: Detokenizer
    finishes: tuple[Finish, ...] = ()
    prompt: Sequence[int] = attrs.field(default=(), repr=False)
    # The automaton of the hidden strings, and its state after the final text.
    _machine: AhoCorasick = attrs.field(init=False, repr=False)
    _state: int = attrs.field(init=False, repr=False, default=0)
    # The same for hidden token sequences, and the newest ids while they are a prefix of one: not yet
    # detokenised.
    _sequences: AhoCorasick = attrs.field(init=False, repr=False)
    _sequence: int = attrs.field(init=False, repr=False, default=0)
    _waiting: list[int] = attrs.field(init=False, repr=False, factory=list)
    # The number of trailing returned characters in which a string may have begun, and those characters.
    _reach: int = attrs.field(init=False, repr=False)
    _tail: str = attrs.field(init=False, repr=False, default="")
    _held: str = attrs.field(init=False, repr=False, default="")
    _echo: str = attrs.field(init=False, repr=False)

    @_machine.default
    def _machine_of_hidden_strings(self) -> AhoCorasick:
        return AhoCorasick.of(tuple(_strings([finish for finish in self.finishes if finish.hide])))

    @_echo.default
    def _echo_of_the_prompt(self) -> str:
        return self.detokenizer.push(self.prompt)

    @_sequences.default
    def _machine_of_hidden_sequences(self) -> AhoCorasick:
        hidden = (match for finish in self.finishes if finish.hide for match in _parts(finish.matched))
        return AhoCorasick.of(tuple(match for match in hidden if isinstance(match, TokenSequence)))

    @_reach.default
    def _reach_of_the_longest_string(self) -> int:
        return max(map(len, _strings(self.finishes)), default=1) - 1

    def push(self, ids: Sequence[int], finish: Finish | None = None) -> str:
        """
        Take the row's next *ids* and return the text that has become final.

        Args:
            ids: One or several.

            finish: Set if the last id ended the row; then nothing is held. The stop string that ends
                first in the newest token's text cuts the text: before it if the finish hides it, else
                after it. Without one, a hidden token or token sequence is removed.

        Returns:
            The text; the first piece begins with an echoed prompt.
        """
        echo, self._echo = self._echo, ""
        waiting = [*self._waiting, *ids]
        return echo + (self._go_on(self._decided(ids)) if finish is None else self._end(waiting, finish))

    def _go_on(self, ids: Sequence[int]) -> str:
        new = self.detokenizer.push(ids)
        self._state = self._machine.read(self._state, new)
        text = self._held + new
        final = len(text) - self._machine.live[self._state]
        self._held = text[final:]
        out = self._tail + text[:final]
        self._tail = out[max(0, len(out) - self._reach) :]
        return text[:final]

    def _decided(self, ids: Sequence[int]) -> list[int]:
        """The ids, including *ids*, that no hidden sequence can contain any more."""
        self._sequence = self._sequences.read(self._sequence, ids)
        known = [*self._waiting, *ids]
        decided = len(known) - self._sequences.live[self._sequence]
        self._waiting = known[decided:]
        return known[:decided]

    def _end(self, ids: Sequence[int], finish: Finish) -> str:
        # Here ``matched`` names a part, not text.
        strings = [] if finish.reason in (NO_TOKEN_LEFT, NUMERIC_OVERFLOW) else list(_strings([finish]))
        if finish.hide and not strings:
            ids = ids[: max(0, len(ids) - max(map(_tokens, _parts(finish.matched)), default=0))]
        final = self._tail + self._held + self.detokenizer.push(ids[:-1])
        before = final + self.detokenizer.preview()
        text = final + self.detokenizer.push(ids[-1:]) + self.detokenizer.flush()
        match = _completed(strings, before, text)
        if match is None:
            return text[len(self._tail) :]
        index, start = match
        return text[len(self._tail) : start if finish.hide else start + len(strings[index])]


def row_texts(
    tokenizer: Any, skip_special_tokens: bool, finishes: tuple[Finish, ...], history: History, echo: bool
) -> list[RowText]:
    """The texts of the rows of *history*, which begin with the prompts if *echo* is set."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens)
    prompts = [history.before(row, 0).tolist() if echo else () for row in range(len(history.length))]
    return [RowText(detokenizer.another(), finishes, prompt) for prompt in prompts]


def _strings(finishes: Sequence[Finish]) -> Iterator[str]:
    for finish in finishes:
        yield from (match for match in _parts(finish.matched) if isinstance(match, str) and match)


def _parts(matched: Any) -> Iterator[Any]:
    """The single matches in *matched*, which is nested pairs for ``a & b``."""
    if isinstance(matched, tuple) and not isinstance(matched, TokenSequence):
        for match in matched:
            yield from _parts(match)
    else:
        yield matched


def _tokens(match: Any) -> int:
    """The number of tokens in *match*; 0 if it is no match of tokens."""
    return len(match) if isinstance(match, TokenSequence) else int(isinstance(match, int))


def _completed(strings: Sequence[str], before: str, text: str) -> tuple[int, int] | None:
    """
    Find the string that ends first in the part of *text* that is new since *before*; then the longest.

    Returns:
        Its index in *strings* and its start in *text*; None if there is none.
    """
    known = common_prefix_length(before, text)
    found = []
    for index, string in enumerate(strings):
        start = text.find(string, max(0, known - len(string) + 1))
        if start >= 0:
            found.append((start + len(string), start, index))
    if not found:
        return None
    _, start, index = min(found)
    return index, start
