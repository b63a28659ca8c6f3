"""The tokens so far, in the form that all parts share."""

import attrs
import torch
from torch import Tensor


@attrs.frozen(eq=False)
class History:
    """
    The tokens before each column of a window.

    One code path serves plain decoding and verification: a plain step is a window of one column, and
    the columns of a wider window differ in :attr:`length`. Ids beyond it are undefined, rejected draft
    tokens for example; parts must not read them.
    """

    ids: Tensor
    """``[batch, paths, capacity]`` int64. One path: all columns lie on it."""

    length: Tensor
    """``[batch, width]`` int64: ``ids[b, path, :length[b, i]]`` precede column *i*."""

    prompt: Tensor
    """``[batch]`` int64: the number of prompt tokens."""

    random_stream: Tensor
    """``[batch]`` int64: the random stream of each row, the seed folded in."""

    def at(self, length: Tensor) -> "History":
        """The same ids, for columns with *length* ``[batch, width]`` tokens before them."""
        return History(self.ids, length, self.prompt, self.random_stream)

    def rows(self, index: Tensor | slice) -> "History":
        """The rows at *index*."""
        return History(self.ids[index], self.length[index], self.prompt[index], self.random_stream[index])

    def with_room(self, tokens: int) -> "History":
        """
        A copy with room for *tokens* draft tokens after the longest row.

        Its ids end there, so that neither the copy nor what masks its ids takes time for the rest of the
        capacity.
        """
        reach = min(int(self.length.max()) + tokens, self.ids.shape[-1])
        return History(self.ids[..., :reach].clone(), self.length, self.prompt, self.random_stream)

    def before(self, row: int, column: int) -> Tensor:
        """The ids before one column, ``[length]``: a read-only view."""
        path = column if self.ids.shape[1] > 1 else 0
        return self.ids[row, path, : int(self.length[row, column])]

    def num_generated(self) -> Tensor:
        """``[batch, width]`` int64: the number of new tokens before each column."""
        return self.length - self.prompt[:, None]

    def valid(self) -> Tensor:
        """``[batch, width, capacity]`` bool: True where a token precedes the column."""
        slots = torch.arange(self.ids.shape[-1], device=self.ids.device)
        return slots < self.length[..., None]

    def generated(self) -> Tensor:
        """``[batch, width, capacity]`` bool: :meth:`valid` without the prompt."""
        slots = torch.arange(self.ids.shape[-1], device=self.ids.device)
        return (slots < self.length[..., None]) & (slots >= self.prompt[:, None, None])
