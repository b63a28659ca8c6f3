"""Token healing: the last tokens of a prompt are tokenized together with its continuation."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import attrs

from ..engine.logprob_recorder import stages_until
from ..engine.parts import prompt_rows
from ..generator import Generator
from ..protocols import Processor
from ..results.events import EventStream
from ..results.generation import Generation
from ..results.logprobs import Logprobs
from ..text.detokenizer import Detokenizer
from ..text.per_tokenizer import tokenizers_unchanged
from ..text.piece_index import PieceIndex
from ..text.tokenizer import common_prefix_length
from ..validation import is_whole

Constrain: TypeAlias = Callable[[bytes | list[bytes], Any], Processor]
"""
Makes a processor from a prefix for all rows, or one per row, and the tokenizer.

It lets the new tokens' text begin with the prefix, as :class:`~decodekit.processors.ForcedPrefix` does, and
composes with ``|``.
"""


@attrs.frozen
class HealedPrompt:
    """A prompt without its last tokens."""

    ids: list[int]
    """The tokens that are left, at least one."""

    removed: bytes
    """The text of the others, with which the continuation must begin; empty if none was removed."""


def heal_prompt(ids: Sequence[int], tokenizer: Any, most: int | None = None) -> HealedPrompt:
    """
    Remove the tokens at the end of a prompt that may be the beginning of a longer token.

    A tokenizer splits a text without knowing how it goes on: ``"http:"`` ends in the token ``":"``, and a
    model that has learned ``"://"`` rarely writes ``"//"`` after it. Removed are as many tokens as together
    are a proper prefix of some token: those that a longer prompt could have joined with its continuation.
    A special token and those before it stay.

    Args:
        ids: The prompt.

        tokenizer: A Hugging Face tokenizer.

        most: Maximum number of removed tokens; None for all such. At least one token stays in any case.
    """
    index, size = PieceIndex.of(tokenizer), len(ids)
    tail, start = b"", size
    for first in range(size - 1, 0 if most is None else max(0, size - 1 - most), -1):
        piece = index.bytes_of.get(ids[first], b"")
        tail = piece + tail
        if not piece or len(tail) >= index.longest:
            break
        if index.can_extend(tail):
            start = first
    return HealedPrompt(list(ids[:start]), index.text_of(list(ids[start:])))


@attrs.frozen(eq=False)
class TokenHealing:
    """
    A generator whose prompts are healed (:func:`heal_prompt`).

    The new tokens begin with the removed text, in any tokenization, and go on as the generator's parts say.
    Sampler, processors, stop and drafter are the generator's; the constraint comes before its chain. Limits
    of new tokens count the tokens that spell the removed text; stop strings are searched in their text
    too.

    The text of a result is what follows the prompt as it was written, or begins with that prompt if the
    generator echoes it. ``result.prompts`` and ``result.ids`` are the tokens as they were fed and sampled.

    A prompt that cannot be healed is generated from as it is.
    """

    generator: Generator = attrs.field()
    """It must have a tokenizer, and no parameters per row unless it is called with that many prompts."""

    constrain: Constrain = attrs.field()
    """:class:`~decodekit.processors.ForcedPrefix`, or another function that makes such a processor."""

    most: int | None = attrs.field(default=None)
    """Maximum number of removed tokens of each prompt, 1 or more; None for no limit."""

    @generator.validator
    def _check_generator(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not isinstance(value, Generator):
            raise TypeError(f"'generator' must be a Generator: got {value!r}")
        if value.tokenizer is None:
            raise ValueError("'generator' must have a tokenizer: got None")

    @constrain.validator
    def _check_constrain(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not callable(value):
            raise TypeError(f"'constrain' must be callable, such as ForcedPrefix: got {value!r}")

    @most.validator
    def _check_most(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value is not None and (not is_whole(value) or value < 1):
            raise ValueError(f"'most' must be None or a whole number >= 1: got {value!r}")

    def __call__(
        self,
        prompts: Any,
        random_streams: Sequence[int] | None = None,
        logprobs: Logprobs | None = None,
        num_samples: int = 1,
    ) -> Generation:
        """
        Generate until all rows have ended; arguments and errors as in a call of the generator.

        Prompts with different removed texts must give no more rows than the decoder has.
        """
        healed, remainders, generator = self._begin(prompts, num_samples)
        ids = [prompt.ids for prompt in healed]
        asked = self._of_chain(logprobs, generator)
        result = generator(ids, random_streams, logprobs=asked, num_samples=num_samples)
        texts = cast("list[str]", result.text)
        cut = [remainder.push(text) for text, remainder in zip(texts, remainders, strict=True)]
        return attrs.evolve(result, text=cut)

    def stream(
        self,
        prompts: Any,
        random_streams: Sequence[int] | None = None,
        logprobs: Logprobs | None = None,
        num_samples: int = 1,
    ) -> EventStream:
        """Generate event by event; arguments as in a call, else as the generator's ``stream``."""
        healed, remainders, generator = self._begin(prompts, num_samples)
        asked = self._of_chain(logprobs, generator)
        events = generator.stream([prompt.ids for prompt in healed], random_streams, asked, num_samples)
        return _without_prompts(events, remainders)

    @tokenizers_unchanged()
    def _begin(
        self, prompts: Any, num_samples: int
    ) -> tuple[list[HealedPrompt], list["_Remainder"], Generator]:
        """The prompts, what removes each row's prompt from its text, and their generator."""
        given = self.generator
        if not is_whole(num_samples) or num_samples < 1:
            raise ValueError(f"'num_samples' must be a whole number >= 1: got {num_samples!r}")
        rows = prompt_rows(given, prompts, given.decoder.shape)
        healed = [heal_prompt(row, given.tokenizer, self.most) for row in rows]
        removed = [prompt.removed for prompt in healed for _ in range(num_samples)]
        # Prompt and new tokens are decoded together, and the prompt is cut off afterwards.
        texts = ["" if given.echo_prompt else self._text(row) for row in rows]
        remainders = [_Remainder(text) for text in texts for _ in range(num_samples)]
        return healed, remainders, attrs.evolve(given, processors=self._chain(removed), echo_prompt=True)

    def _of_chain(self, logprobs: Logprobs | None, generator: Generator) -> Logprobs | None:
        """*logprobs* of a stage of the given chain, before which *generator* may have a constraint."""
        given = self.generator.processors
        if not isinstance(logprobs, Logprobs) or logprobs.stage in ("raw", "processed"):
            return logprobs
        place = stages_until(logprobs.stage, self.generator.pipeline.stages) - 1
        return attrs.evolve(logprobs, stage=place + (generator.processors is not given))

    def _chain(self, removed: list[bytes]) -> Processor | None:
        chain = self.generator.processors
        if not any(removed):
            return chain
        # Equal prefixes need no parameter per row, with which prompts could not take turns.
        prefixes = removed[0] if len(set(removed)) == 1 else removed
        constraint: Any = self.constrain(prefixes, self.generator.tokenizer)
        return constraint if chain is None else cast(Processor, constraint | chain)

    def _text(self, row: list[int]) -> str:
        """A prompt's text, without an incomplete last character."""
        text = Detokenizer(self.generator.tokenizer, self.generator.skip_special_tokens)
        return text.push(row) + text.preview()


@attrs.define
class _Remainder:
    """
    Removes a prompt's text from the beginning of a row's text.

    The row's text may have another text in the place of the prompt's end: a tokenizer that cleans up spaces
    decodes ``"a "`` and ``"."`` to ``"a."``, and a word that goes on loses its continuation mark.
    """

    _left: str
    """The end of the prompt's text, which the row's text has not reached."""

    def push(self, text: str) -> str:
        """Take the row's next *text*; what of it follows the prompt."""
        while self._left and text:
            known = common_prefix_length(self._left, text)
            self._left, text = self._left[known:], text[known:]
            if self._left and text:
                # Only spaces are removed before the prompt's last characters.
                self._left = self._left[1:] if self._left[0] == " " else ""
        return text


def _without_prompts(events: EventStream, remainders: list[_Remainder]) -> EventStream:
    """*events* without the prompt at the beginning of each row's text."""
    try:
        for event in events:
            yield attrs.evolve(event, text=remainders[event.row].push(event.text or ""))
    finally:
        events.close()
