"""What the unconditional side of guidance begins with."""

from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from ..prompts import as_rows
from ..protocols import DecoderShape

Ints = NDArray[np.int64]


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


def negative_prompts(negative: Any, shape: DecoderShape, tokenizer: Any) -> NegativePrompts:
    """
    The negative prompts that *negative* names.

    Args:
        negative: None, one prompt, or one for each row of *shape*, as in a call of a generator.

        shape: What a generation has.

        tokenizer: Encodes strings.

    Raises:
        TypeError: No prompts.

        ValueError: They do not fit, or are neither one nor as many as there are rows.
    """
    if negative is None:
        return LastToken()
    try:
        rows = as_rows(negative, shape, tokenizer, any_number=True)
    except (TypeError, ValueError) as error:
        raise type(error)(f"'negative' must be None, a prompt, or one for each row: {error}") from error
    if len(rows) not in (1, shape.batch_size):
        raise ValueError(
            f"'negative' must be one prompt, or one for each of the {shape.batch_size} rows: got {len(rows)}"
        )
    return GivenPrompts([np.array(row, dtype=np.int64) for row in rows])
