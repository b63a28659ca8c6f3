"""Random windows that the contract checks feed to parts."""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from ..history import History
from ..validation import is_whole
from .assertions import require


def check_sizes(seed: int, **sizes: int) -> None:
    """Refuse *sizes* that are no whole numbers >= 1, and a *seed* that is negative."""
    for name, size in sizes.items():
        if not is_whole(size) or size < 1:
            raise ValueError(f"'{name}' must be a whole number >= 1: got {size!r}")
    if not is_whole(seed) or seed < 0:
        raise ValueError(f"'seed' must be a whole number >= 0: got {seed!r}")


@attrs.frozen(eq=False)
class TrialWindow:
    """Logits and the tokens around them, as a verification shows them to a part."""

    logits: Tensor
    """``[batch, width, vocab]`` float32."""

    history: History

    @classmethod
    def random(cls, batch: int, width: int, vocab: int, random: torch.Generator, least: int) -> "TrialWindow":
        """A window on one path; each row has at least *least* tokens, few of them distinct."""
        logits = 3 * torch.randn(batch, width, vocab, generator=random)
        first = torch.randint(least, least + 6, (batch, 1), generator=random)
        length = first + torch.arange(width)
        capacity = int(length.max()) + 2
        ids = torch.randint(0, min(vocab, 4), (batch, 1, capacity), generator=random)
        # Ids beyond the last column's length are undefined.
        behind = torch.arange(capacity) >= length[:, None, -1:]
        prompt = (torch.rand(batch, generator=random) * first[:, 0]).long()
        return cls(logits, History(ids.masked_fill(behind, -1), length, prompt, torch.arange(batch)))

    def forbidding(self, random: torch.Generator) -> "TrialWindow":
        """The same with ``-inf`` for half of the tokens, as after a truncation; the largest logit is left."""
        forbidden = torch.rand(self.logits.shape, generator=random) < 0.5
        forbidden.scatter_(-1, self.logits.argmax(dim=-1, keepdim=True), False)
        return TrialWindow(self.logits.masked_fill(forbidden, -torch.inf), self.history)

    def column(self, column: int, garbage: int) -> "TrialWindow":
        """One column alone, with *garbage* beyond its length."""
        one = slice(column, column + 1)
        history, length = self.history, self.history.length[:, one]
        behind = torch.arange(history.ids.shape[-1]) >= length[:, None]
        ids = history.ids.masked_fill(behind, garbage)
        return TrialWindow(
            self.logits[:, one].clone(), History(ids, length, history.prompt, history.random_stream)
        )

    def branched(self) -> "TrialWindow":
        """The same tokens with a path for each column, as a draft tree has them."""
        history, width = self.history, self.logits.shape[1]
        ids = history.ids.expand(-1, width, -1).clone()
        return TrialWindow(
            self.logits.clone(), History(ids, history.length, history.prompt, history.random_stream)
        )

    def rows(self, rows: Sequence[int]) -> "TrialWindow":
        """The *rows* alone."""
        index = torch.tensor(rows)
        return TrialWindow(self.logits[index], self.history.rows(index))

    def beside(self, row: int, other: "TrialWindow") -> "TrialWindow":
        """The window's *row* in its place, with the rows of *other* in place of the others."""
        keep = torch.arange(len(self.logits)) == row
        capacity = max(self.history.ids.shape[-1], other.history.ids.shape[-1])
        mine, theirs = (
            torch.nn.functional.pad(
                window.history.ids, (0, capacity - window.history.ids.shape[-1]), value=-1
            )
            for window in (self, other)
        )
        return TrialWindow(
            torch.where(keep[:, None, None], self.logits, other.logits),
            History(
                torch.where(keep[:, None, None], mine, theirs),
                torch.where(keep[:, None], self.history.length, other.history.length),
                torch.where(keep, self.history.prompt, other.history.prompt),
                self.history.random_stream,
            ),
        )

    def fed(self, row: int | None = None, column: int | None = None) -> str:
        """What was fed, for a message: the batch and the width, the tokens of one column if given."""
        batch, width, vocab = self.logits.shape
        shape = f"fed logits [{batch}, {width}, {vocab}]"
        if row is None:
            return shape
        tokens = self.history.before(row, column or 0).tolist()
        prompt = int(self.history.prompt[row])
        return f"{shape}, row {row}, column {column or 0}, tokens {tokens} ({prompt} of the prompt)"


def require_history_unchanged(history: History, before: History, what: str, fed: str) -> None:
    """Require that *history* still equals its copy from *before* the call."""
    pairs = {
        "ids": (history.ids, before.ids),
        "length": (history.length, before.length),
        "prompt": (history.prompt, before.prompt),
        "random_stream": (history.random_stream, before.random_stream),
    }
    for name, (new, old) in pairs.items():
        same = new.shape == old.shape and torch.equal(new, old)
        require(
            same,
            f"{what} must not write into its history: {fed}; "
            f"came: history.{name} changed from {old.tolist()} to {new.tolist()}",
        )


def copy_of(history: History) -> History:
    """A copy that shares no memory."""
    return History(
        history.ids.clone(), history.length.clone(), history.prompt.clone(), history.random_stream.clone()
    )
