"""What the unconditional side of guidance begins with."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from ..prompts import as_rows
from ..protocols import DecoderShape
from ..validation import is_whole

Ints = NDArray[np.int64]

_REMEMBERED = 4
"""Negative prompts that are remembered, for each row."""


class NegativePrompts(Protocol):
    """The negative prompt of each row."""

    @property
    def longest(self) -> int:
        """Tokens of the longest."""
        ...

    @property
    def row_independent(self) -> bool:
        """Whether it is the same function of the prompt in every row."""
        ...

    def of(self, row: int, prompt: Ints) -> Ints:
        """The negative prompt of *row*, which has this *prompt*: ids, at least one."""
        ...


@attrs.frozen(eq=False)
class LastToken:
    """The last token of the row's own prompt, as in transformers where no negative prompt is given."""

    longest: int = 1
    row_independent: bool = True

    def of(self, row: int, prompt: Ints) -> Ints:
        """The last of *prompt*."""
        return prompt[-1:]


@attrs.frozen(eq=False)
class GivenPrompts:
    """One negative prompt for all rows, or one for each."""

    prompts: list[Ints]

    @property
    def longest(self) -> int:
        """Tokens of the longest."""
        return max(map(len, self.prompts))

    @property
    def row_independent(self) -> bool:
        """Whether there is one for all."""
        return len(self.prompts) == 1

    def of(self, row: int, prompt: Ints) -> Ints:
        """That of *row*, or the only one."""
        return self.prompts[row if len(self.prompts) > 1 else 0]


@attrs.frozen(eq=False)
class NegativeOf:
    """A negative prompt that is a function of the row's prompt, and no longer."""

    function: Callable[[list[int]], Sequence[int]]
    shape: DecoderShape
    longest: int = 1
    """A longer one is as long as its prompt at most, so that no position is lost."""

    row_independent: bool = True
    _of_bytes: Callable[[bytes], Ints] = attrs.field(init=False, repr=False)

    @_of_bytes.default
    def _remembered(self) -> Callable[[bytes], Ints]:
        return lru_cache(_REMEMBERED * self.shape.batch_size)(self._checked)

    def of(self, row: int, prompt: Ints) -> Ints:
        """That of *prompt*; the function is called once for it, while it is remembered."""
        return self._of_bytes(prompt.tobytes())

    def _checked(self, prompt: bytes) -> Ints:
        ids = np.frombuffer(prompt, dtype=np.int64).tolist()
        negative = self.function(ids)
        try:
            (row,) = as_rows(negative if is_whole(negative) else [negative], self.shape)
        except (TypeError, ValueError) as error:
            raise type(error)(f"'negative' must give the ids of one prompt: {error}") from error
        if len(row) > len(ids):
            raise ValueError(
                f"'negative' must give at most as many tokens as its prompt has, {len(ids)}: got {len(row)}"
            )
        return np.array(row, dtype=np.int64)


def negative_prompts(negative: Any, shape: DecoderShape, tokenizer: Any) -> NegativePrompts:
    """
    The negative prompts that *negative* names.

    Args:
        negative: None; one prompt, or one for each row of *shape*, as in a call of a generator; or a function
            of the prompt's ids.

        shape: What a generation has.

        tokenizer: Encodes strings.

    Raises:
        TypeError: No prompts.

        ValueError: They do not fit, or are neither one nor as many as there are rows.
    """
    if negative is None:
        return LastToken()
    if callable(negative):
        return NegativeOf(negative, shape)
    try:
        rows = as_rows(negative, shape, tokenizer, any_number=True)
    except (TypeError, ValueError) as error:
        raise type(error)(f"'negative' must be None, a prompt, or one for each row: {error}") from error
    if len(rows) not in (1, shape.batch_size):
        raise ValueError(
            f"'negative' must be one prompt, or one for each of the {shape.batch_size} rows: got {len(rows)}"
        )
    return GivenPrompts([np.array(row, dtype=np.int64) for row in rows])
