"""The contract checks of a processor."""

import attrs
import pytest
import torch

from decodekit.decoding import History
from decodekit.processors import Chain, Temperature, TopK
from decodekit.testing import check_processor

from ...processors.entries.entry import Entry
from ...processors.test_catalogue import CATALOGUE


class Writes:
    """Writes into its logits."""

    def __call__(self, logits, history):
        logits[..., 3] = -torch.inf
        return logits


class WritesHistory:
    """Writes into the history."""

    def __call__(self, logits, history):
        history.ids[:, :, 0] = 9
        return logits


class Counts:
    """Remembers how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, logits, history):
        self.calls += 1
        return logits * self.calls


class OneBuffer:
    """Returns the same buffer at each call."""

    def __init__(self):
        self.buffer = {}

    def __call__(self, logits, history):
        buffer = self.buffer.setdefault(logits.shape, torch.empty_like(logits))
        return torch.mul(logits, 2.0, out=buffer)


@attrs.frozen
class Independent:
    """Declares that rows are independent, and numbers them."""

    row_independent = True

    def __call__(self, logits, history):
        return logits + torch.arange(len(logits))[:, None, None] * torch.arange(logits.shape[-1])


@attrs.frozen
class KeepsNothing:
    """Declares that the largest stays the largest."""

    keeps_argmax = True

    def __call__(self, logits, history):
        return -logits


@attrs.frozen
class NotInvariant:
    """Declares that a constant makes no difference."""

    shift_invariant = True

    def __call__(self, logits, history):
        return logits.abs()


@attrs.frozen
class NotLocal:
    """Declares to read neither ids nor other tokens, and reads them."""

    reads: str
    local = True

    def __call__(self, logits, history):
        if self.reads == "index":
            return logits + torch.arange(logits.shape[-1]) % 2 * torch.arange(logits.shape[-1])[-1]
        return logits * history.ids[:, :, 0, None]


def beyond(logits: torch.Tensor, history: History) -> torch.Tensor:
    """Reads all ids."""
    return logits + history.ids.amax(dim=-1)[:, :1, None] * torch.arange(logits.shape[-1])


WRONG = {
    "writes": (Writes(), "must not write into the logits .* fed logits .* came: the logit of token 3"),
    "history": (WritesHistory(), "must not write into its history: fed .* came: history.ids"),
    "remembers": (Counts(), "remember nothing between calls: fed .* came: "),
    "buffer": (OneBuffer(), "must not write into the logits that it returned before"),
    "first column": (lambda logits, history: logits * history.length[:, :1, None], "alone and as one of 4"),
    "one column": (lambda logits, history: logits[:, :1].expand_as(logits), "alone and as one of 4"),
    "beyond": (beyond, "reads no ids beyond 'length'"),
    "path": (lambda logits, history: logits * history.ids.shape[1], "path of its own"),
    "neighbours": (lambda logits, history: logits - logits.mean(dim=0), "not depend on its neighbours"),
    "batch": (lambda logits, history: logits * len(logits), "in a batch of 3 and in one of 1"),
    "row": (Independent(), "in a batch of 3 and in one of 1, rows"),
    "argmax": (KeepsNothing(), "'keeps_argmax' is declared, so the largest logit must stay"),
    "shift": (NotInvariant(), "'shift_invariant' is declared"),
    "local, index": (NotLocal("index"), "'local' is declared.* alone and among all"),
    "local, ids": (NotLocal("ids"), "'local' is declared"),
    "mean of forbidden": (
        lambda logits, history: logits - logits.mean(-1, keepdim=True),
        "makes no logit NaN",
    ),
    "forbidden times 0": (lambda logits, history: logits * (logits > 0), "makes no logit NaN"),
    "not a number": (lambda logits, history: logits * torch.nan, "makes no logit NaN"),
    "infinite": (lambda logits, history: logits + torch.inf, "makes no logit NaN or"),
    "shape": (lambda logits, history: logits[..., :-1], r"shape and dtype: fed .* came: \[3, 4, 15\]"),
    "dtype": (lambda logits, history: logits.double(), "shape and dtype: fed .* came: .* torch.float64"),
    "nothing": (lambda logits, history: None, "shape and dtype: fed .* came: None"),
}


class TestCheckProcessor:
    @pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE.keys())
    def test_passes_every_processor(self, entry: Entry) -> None:
        """With one value, and with one value per row."""
        check_processor(entry.make(entry.example), vocab_size=8)
        if entry.rows:
            check_processor(entry.make([entry.example] * 3), vocab_size=8)

    def test_passes_a_chain(self) -> None:
        """With parameters of rows, for which another batch is refused."""
        check_processor(Chain([Temperature([0.5, 1.0, 2.0]), TopK(4)]))

    @pytest.mark.parametrize(("processor", "message"), WRONG.values(), ids=WRONG.keys())
    def test_finds_a_broken_rule(self, processor, message: str) -> None:
        """And says what was fed, what came, and the rule."""
        with pytest.raises(AssertionError, match=rf"(?s){message}"):
            check_processor(processor)

    def test_allows_rounding_that_is_asked_for(self) -> None:
        """A difference within the tolerance passes."""

        def rounds(logits: torch.Tensor, history: History) -> torch.Tensor:
            return logits + 1e-3 * logits.shape[1]

        with pytest.raises(AssertionError, match="alone and as one of 4 columns"):
            check_processor(rounds)
        check_processor(rounds, tolerance=0.01)

    def test_refuses_wrong_arguments(self) -> None:
        """Before anything is called."""
        with pytest.raises(TypeError, match="'processor' must be callable"):
            check_processor(TopK)
        with pytest.raises(ValueError, match="'vocab_size' must be a whole number >= 1: got 0"):
            check_processor(TopK(2), vocab_size=0)
        with pytest.raises(ValueError, match="'tolerance' must be a number >= 0"):
            check_processor(TopK(2), tolerance=-1.0)
