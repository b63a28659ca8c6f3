"""Contract checks of :class:`~..protocols.Decoder`."""

from collections.abc import Sequence
from functools import partial

import attrs
import torch
from torch import Tensor

from ..protocols import Decoder
from .assertions import require, require_refusal, unknown_width

_QUICK_WIDTH = 64
"""The widest width that is tried after two numbers of tokens."""


@attrs.define(eq=False)
class ChainTrial:
    """The rules of :class:`~..protocols.Decoder`, tried on *tokens*."""

    decoder: Decoder
    tokens: Tensor
    """The tokens of each row, ``[batch, max_length]``."""

    others: Tensor
    """Tokens of which each differs from that of :attr:`tokens` at its place, of the same shape."""

    tolerance: float
    expected: dict[int, Tensor] = attrs.field(factory=dict, init=False)
    """Logits ``[batch, vocab]`` after each position, from the narrowest forward."""

    fed: tuple[Tensor, Sequence[int]] | None = attrs.field(default=None, init=False)
    """The ids and the positions of the newest forward, for messages."""

    def forward(self, ids: Tensor, start: Sequence[int]) -> Tensor:
        """Logits of a forward, their shape and dtype checked."""
        self.fed = ids, start
        logits = self.decoder.forward(ids, torch.tensor(start))
        columns = ids.shape[1] if ids.shape[1] <= self.decoder.shape.scored_width else 1
        shape = (len(ids), columns, self.decoder.shape.vocab_size)
        require(tuple(logits.shape) == shape, f"logits must have the shape {shape}: {tuple(logits.shape)}")
        require(logits.dtype == torch.float32, f"logits must be float32: {logits.dtype}")
        return logits.clone()

    def compare(self, rule: str, row: int, position: int, logits: Tensor) -> None:
        """Compare *logits* ``[vocab]`` with those expected after *position*."""
        self.compare_with(self.expected[position][row], rule, row, position, logits)

    def compare_with(self, expected: Tensor, rule: str, row: int, position: int, logits: Tensor) -> None:
        """Compare *logits* with *expected*, ``[vocab]``."""
        off = float((logits - expected).abs().max())
        limit = self.tolerance * float(expected.abs().max().clamp(min=1.0))
        fed = ""
        if self.fed is not None:
            ids, start = self.fed
            fed = f"; fed ids {ids[row].tolist()} from position {start[row]}"
        message = f"{rule}: row {row}, position {position}{fed}; came: off by {off:.3g}, allowed {limit:.3g}"
        require(off <= limit, message)  # NaN is not within the limit either

    def step_by_step(self) -> None:
        """Feed all tokens one by one."""
        for position in range(self.tokens.shape[1]):
            self.step(position)

    def ragged(self, width: int) -> tuple[Tensor, list[int], list[int]]:
        """A forward of the last tokens in ragged rows: ids, each row's start and its number of tokens."""
        right = width > self.decoder.shape.scored_width
        ids, start, count = torch.full((len(self.tokens), width), -1), [], []
        for row in range(len(self.tokens)):
            n = max(1, width - row)
            # The first row ends at the last position, the others start and end elsewhere.
            end = self.tokens.shape[1] - 2 * row % (self.tokens.shape[1] - width + 1)
            indent = width - n if right else 0
            ids[row, indent : indent + n] = self.tokens[row, end - n : end]
            start.append(end - n - indent)
            count.append(n)
        return ids, start, count

    def one_wide_forward(self, width: int) -> None:
        """Compare a forward of *width* with the narrowest."""
        ids, start, count = self.ragged(width)
        logits = self.forward(ids, start)
        for row, n in enumerate(count):
            if logits.shape[1] < width:
                self.compare(
                    f"width {width} scores its last column", row, start[row] + width - 1, logits[row, -1]
                )
                continue
            for column in range(n):
                rule = f"width {width} agrees with width {self.decoder.shape.widths[0]}"
                self.compare(rule, row, start[row] + column, logits[row, column])

    def over_leavings(self, width: int) -> None:
        """Overwrite the tokens with others and back: nothing of the others may remain."""
        ids, start, _ = self.ragged(width)
        other = torch.where(ids >= 0, (ids + 1) % self.decoder.shape.vocab_size, -1)
        self.forward(other, start)
        self.one_wide_forward(width)

    def after_a_wide_forward(self, width: int) -> None:
        """Feed the token that follows a forward of *width*, whose slots held other tokens before."""
        length = self.tokens.shape[1]
        # One position must be left to read the slots from.
        count = min(width, length - 1)
        firsts = {0, min(3, length - 1 - count)} if count else set()
        # Each takes forwards of one token as many times as the width has columns.
        for first in sorted(firsts)[: 2 if width <= _QUICK_WIDTH else 1]:
            self._wide_then_narrow(width, count, first)

    def _wide_then_narrow(self, width: int, count: int, first: int) -> None:
        batch, length = self.tokens.shape
        rows = torch.arange(batch)
        # Rows of a batch are written at positions of their own.
        start = (first + rows) % (length - count)
        for position in range(int(start.max())):
            self.step(position)
        for column in range(count):
            self.narrow(self.others[rows, start + column], start + column)
        indent = width - count if width > self.decoder.shape.scored_width else 0
        ids = torch.full((batch, width), -1)
        ids[:, indent : indent + count] = self.tokens[rows[:, None], start[:, None] + torch.arange(count)]
        self.forward(ids, (start - indent).tolist())
        end = start + count
        logits = self.narrow(self.tokens[rows, end], end)
        rule = f"a forward of width {width} writes its tokens into the cache, over those that its slots held"
        for row in range(batch):
            self.compare(rule, row, int(end[row]), logits[row])

    def narrow(self, ids: Tensor, position: Tensor) -> Tensor:
        """Logits ``[batch, vocab]`` of one token a row, -1 for none, through the narrowest forward."""
        wide = torch.full((len(ids), self.decoder.shape.widths[0]), -1)
        wide[:, 0] = ids
        return self.forward(wide, position.tolist())[:, 0]

    def rows_exchanged(self) -> None:
        """Feed each row the tokens of the next: they take the place of its own, and score as there."""
        batch, length = self.tokens.shape
        if batch == 1:
            return
        for position in range(length):
            ids = torch.full((batch, self.decoder.shape.widths[0]), -1)
            ids[:, 0] = self.tokens[:, position].roll(-1)
            logits = self.forward(ids, [position] * batch)[:, 0]
            for row in range(batch):
                expected = self.expected[position][(row + 1) % batch]
                rule = "a token takes the place of the one that its slot held, and scores as in another row"
                self.compare_with(expected, rule, row, position, logits[row])

    def beside_overflow(self, width: int, token: int) -> None:
        """Feed *token*, on which the model overflows, into slots that are written over, or not seen."""
        ids, start, count = self.ragged(width)
        overflowing = torch.where(ids >= 0, token, -1)
        rule = f"a token that overflows is seen by no other than the columns after it, at width {width}"
        scores_all = width <= self.decoder.shape.scored_width
        spoiled = self.forward(overflowing, start)
        require(bool(spoiled[:, : 1 if scores_all else None].isnan().all()), f"{rule}: they must score NaN")
        self.one_wide_forward(width)
        kept = width // 2
        if kept and scores_all:
            logits = self.forward(torch.cat([ids[:, :kept], overflowing[:, kept:]], dim=1), start)
            for row, n in enumerate(count):
                for column in range(min(kept, n)):
                    self.compare(rule, row, start[row] + column, logits[row, column])
                require(bool(logits[row, kept:n].isnan().all()), f"{rule}: they must score NaN")
            # Now they lie behind.
            last = [min(kept, n) - 1 for n in count]
            narrow = torch.full((len(ids), self.decoder.shape.widths[0]), -1)
            narrow[:, 0] = torch.stack([ids[row, column] for row, column in enumerate(last)])
            logits = self.forward(narrow, [first + column for first, column in zip(start, last, strict=True)])
            for row, column in enumerate(last):
                self.compare(rule, row, start[row] + column, logits[row, 0])
            self.one_wide_forward(width)

    def under_padding(self, width: int) -> None:
        """The first tokens after padding that starts at a negative position; also a single token."""
        self.step_by_step()
        batch, half = len(self.tokens), max(1, width // 2)
        for n in {half, 1}:
            ids = torch.full((batch, width), -1)
            ids[:, width - n :] = self.tokens[:, :n]
            logits = self.forward(ids, [n - width] * batch)
            for row in range(batch):
                self.compare(
                    f"padding before the tokens of width {width} is not seen", row, n - 1, logits[row, -1]
                )
            ids = torch.full((batch, width), -1)
            ids[:, :n] = self.tokens[:, :n]
            self.forward(ids, [0] * batch)
        # Later slots must be unchanged.
        last = self.tokens.shape[1] - 1
        self.step(last)

    def padding_over_slots(self, width: int) -> None:
        """The last tokens after padding that stands over slots in use."""
        self.step_by_step()
        batch, last = len(self.tokens), self.tokens.shape[1] - 1
        for n in {max(1, width // 2), 1} - {width}:
            ids = torch.full((batch, width), -1)
            ids[:, width - n :] = self.tokens[:, last + 1 - n :]
            rule = f"padding before the tokens of width {width} leaves the slots that it stands over"
            logits = self.forward(ids, [last + 1 - width] * batch)
            for row in range(batch):
                self.compare(rule, row, last, logits[row, -1])
            self.step(last)

    def step(self, position: int) -> None:
        """Feed every row's token at *position* through the narrowest forward."""
        logits = self.narrow(self.tokens[:, position], torch.full((len(self.tokens),), position))
        self.expected.setdefault(position, logits)
        for row in range(len(self.tokens)):
            self.compare(
                "padding writes nothing, and a token is written where it belongs", row, position, logits[row]
            )

    def beyond_a_rewind(self) -> None:
        """Feed an earlier token again: the slots after it must still hold what they held."""
        last = self.tokens.shape[1] - 1
        for position in sorted({0, last // 2}):
            self.step_by_step()
            self.step(position)
            ids = torch.full((len(self.tokens), self.decoder.shape.widths[0]), -1)
            ids[:, 0] = self.tokens[:, last]
            rule = (
                f"a forward leaves the slots after its own: all {last + 1} tokens were fed, then the token "
                f"at {position} again, then the last. A cache that is cropped on a rewind loses these slots, "
                "but a generation counts them as cached as long as equal tokens are fed before them, and "
                "does not feed them again"
            )
            try:
                logits = self.forward(ids, [last] * len(self.tokens))[:, 0]
            except Exception as error:
                raise AssertionError(f"{rule}; came: {error!r}") from error
            for row in range(len(self.tokens)):
                self.compare(rule, row, last, logits[row])

    def beside_idle_rows(self) -> None:
        """One row advances, the others are padding and must keep their caches."""
        self.step_by_step()
        batch, length = self.tokens.shape
        for width in self.decoder.shape.widths:
            for row in range(batch):
                ids = torch.full((batch, width), -1)
                ids[row] = self.tokens[row, length - width :]
                start = [length - width if r == row else 0 for r in range(batch)]
                logits = self.forward(ids, start)[row, -1]
                self.compare(f"idle rows stay as they are at width {width}", row, length - 1, logits)
            # An early token sees no slots but those that an idle row's columns stood over.
            for position in {length // 2, length - 1}:
                self.step(position)

    def refusals(self) -> None:
        """Invalid calls must raise and write nothing."""
        shape, width = self.decoder.shape, self.decoder.shape.widths[0]
        ids, start = torch.zeros(shape.batch_size, width, dtype=torch.int64), torch.zeros(shape.batch_size)
        start = start.long()
        unknown = torch.zeros(shape.batch_size, unknown_width(shape.widths), dtype=torch.int64)
        cases = {
            "another width": (unknown, start, ValueError),
            "another batch": (torch.zeros(shape.batch_size + 1, width, dtype=torch.int64), start, ValueError),
            "another dtype": (ids.int(), start, TypeError),
            "floating positions": (ids, start.float(), TypeError),
            "an id beyond the vocabulary": (ids + shape.vocab_size, start, ValueError),
            "an id below -1": (ids - 2, start, ValueError),
            "a position beyond the last": (ids, start + shape.max_length, ValueError),
            "a negative position": (ids, start - 1, ValueError),
        }
        for name, (bad_ids, bad_start, error) in cases.items():
            require_refusal(name, error, partial(self.decoder.forward, bad_ids, bad_start))
        self.beside_idle_rows()
