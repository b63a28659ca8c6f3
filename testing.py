"""
What tests of parts and of decoders need.

:class:`ScriptedDecoder` is a decoder whose logits come from a table: exact in any width and
batch, and quick. :func:`check_decoder` tries a decoder of yours against the contract.
"""

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from .decoding.checks import check_inputs
from .decoding.protocols import Decoder, DecoderShape

__all__ = ["ScriptedDecoder", "check_decoder", "last_token", "whole_prefix"]


def last_token(prefix: Sequence[int]) -> int:
    """The line of the table for a decoder that looks at the newest token only."""
    return prefix[-1]


def whole_prefix(prefix: Sequence[int]) -> int:
    """A line that depends on every token and its place, so that one wrong slot shows."""
    state = 1
    for token in prefix:
        state = (state * 6364136223846793005 + token + 1442695040888963407) % (1 << 64)
    return state >> 33


@attrs.define(eq=False)
class ScriptedDecoder:
    """
    A decoder that reads its logits from *table*.

    It keeps a cache as the contract has it, of ids: what follows a column is looked up with
    the ids that lie in the slots up to its position. As in a model, what was written for a
    token is worth nothing once another token stands before it. So tokens that were fed
    wrongly, late, not again, or to another position change the logits.
    """

    table: Tensor
    """``[lines, vocab]``."""

    batch_size: int = 1
    max_length: int = 64
    widths: tuple[int, ...] = (1, 5, 16)
    scored_width: int = 5
    line: Callable[[Sequence[int]], int] = whole_prefix
    """A prefix to a line of the table, modulo its lines; or :func:`last_token`, or your own."""

    shape: DecoderShape = attrs.field(init=False)
    slots: Tensor = attrs.field(init=False)
    """The cache, ``[batch, max_length]``: ids, -1 where nothing of worth has been written."""

    forwards: list[int] = attrs.field(factory=list, init=False)
    """The widths of the forwards so far."""

    def __attrs_post_init__(self) -> None:
        """Lay out an empty cache."""
        vocab_size = self.table.shape[1]
        self.shape = DecoderShape(
            self.batch_size, self.max_length, vocab_size, self.widths, self.scored_width
        )
        self.slots = torch.full((self.batch_size, self.max_length), -1)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """See :class:`~decodekit.decoding.protocols.Decoder`."""
        check_inputs(ids, cache_pos, self.shape)
        width = ids.shape[1]
        self.forwards.append(width)
        real = (ids >= 0).nonzero().tolist()
        for row, column in real:
            self._write(row, int(cache_pos[row]) + column, int(ids[row, column]))
        logits = torch.full((len(ids), width, self.shape.vocab_size), torch.nan)
        for row, column in real:
            prefix = self.slots[row, : int(cache_pos[row]) + column + 1].tolist()
            logits[row, column] = self.table[self.line(prefix) % len(self.table)]
        return logits if width <= self.shape.scored_width else logits[:, -1:]

    def _write(self, row: int, position: int, token: int) -> None:
        if self.slots[row, position] != token:
            self.slots[row, position:] = -1
            self.slots[row, position] = token


def check_decoder(decoder: Decoder, *, tolerance: float = 1e-4, seed: int = 0) -> None:
    """
    Try *decoder* against the rules of :class:`~decodekit.decoding.protocols.Decoder`.

    Random tokens are fed token by token, and then again in every width, in ragged rows, under
    padding, over the leavings of other tokens, and up to the last position: the logits must be
    the same up to *tolerance*. Then come the calls that must be refused.

    Args:
        decoder: Any decoder. Its cache is overwritten.

        tolerance: The largest difference of logits allowed, relative to the largest logit.

        seed: Of the random tokens.

    Raises:
        AssertionError: A rule is broken; the message names it.
    """
    shape = decoder.shape
    _require(shape.widths[-1] <= shape.max_length, f"widths must be <= max_length: {shape.widths}")
    random = np.random.default_rng(seed)
    tokens = torch.from_numpy(random.integers(shape.vocab_size, size=(shape.batch_size, shape.max_length)))
    trial = _Trial(decoder, tokens, tolerance)
    trial.step_by_step()
    for width in shape.widths:
        trial.one_wide_forward(width)
        trial.over_leavings(width)
        trial.under_padding(width)
    trial.beside_idle_rows()
    trial.refusals()


def _require(holds: bool, message: str) -> None:
    # Not an assert statement: those are gone under ``python -O``.
    if not holds:
        raise AssertionError(message)


@attrs.define(eq=False)
class _Trial:
    decoder: Decoder
    tokens: Tensor
    tolerance: float
    expected: dict[int, Tensor] = attrs.field(factory=dict, init=False)
    """Logits ``[batch, vocab]`` after each position, as the narrowest forward gives them."""

    def forward(self, ids: Tensor, start: Sequence[int]) -> Tensor:
        logits = self.decoder.forward(ids, torch.tensor(start))
        columns = ids.shape[1] if ids.shape[1] <= self.decoder.shape.scored_width else 1
        shape = (len(ids), columns, self.decoder.shape.vocab_size)
        _require(tuple(logits.shape) == shape, f"logits must have the shape {shape}: {tuple(logits.shape)}")
        _require(logits.dtype == torch.float32, f"logits must be float32: {logits.dtype}")
        return logits.clone()

    def compare(self, rule: str, row: int, position: int, logits: Tensor) -> None:
        expected = self.expected[position][row]
        off = float((logits - expected).abs().max())
        limit = self.tolerance * float(expected.abs().max().clamp(min=1.0))
        message = f"{rule}: row {row}, position {position}, off by {off:.3g}, allowed {limit:.3g}"
        _require(off <= limit, message)  # NaN is not within the limit either

    def step_by_step(self) -> None:
        for position in range(self.tokens.shape[1]):
            self.step(position)

    def ragged(self, width: int) -> tuple[Tensor, list[int], list[int]]:
        """A forward of the last tokens in ragged rows: ids, where each row starts, and its count."""
        right = width > self.decoder.shape.scored_width
        ids, start, count = torch.full((len(self.tokens), width), -1), [], []
        for row in range(len(self.tokens)):
            n = max(1, width - row)
            # The first row ends at the very last position, the others start and end elsewhere.
            end = self.tokens.shape[1] - 2 * row % (self.tokens.shape[1] - width + 1)
            indent = width - n if right else 0
            ids[row, indent : indent + n] = self.tokens[row, end - n : end]
            start.append(end - n - indent)
            count.append(n)
        return ids, start, count

    def one_wide_forward(self, width: int) -> None:
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
        """Other tokens where these stood, then these again: nothing may remain of the others."""
        ids, start, _ = self.ragged(width)
        other = torch.where(ids >= 0, (ids + 1) % self.decoder.shape.vocab_size, -1)
        self.forward(other, start)
        self.one_wide_forward(width)

    def under_padding(self, width: int) -> None:
        """The first tokens behind padding, from a negative position on, and one token at the end of it."""
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
        # What stood behind them has to stand there still.
        last = self.tokens.shape[1] - 1
        self.step(last)

    def step(self, position: int) -> None:
        """Every row's token at *position*, by the narrowest forward."""
        ids = torch.full((len(self.tokens), self.decoder.shape.widths[0]), -1)
        ids[:, 0] = self.tokens[:, position]
        logits = self.forward(ids, [position] * len(self.tokens))[:, 0]
        self.expected.setdefault(position, logits)
        for row in range(len(self.tokens)):
            self.compare(
                "padding writes nothing, and a token is written where it belongs", row, position, logits[row]
            )

    def beside_idle_rows(self) -> None:
        """One row advances, the others are padding: their caches must stay as they are."""
        self.step_by_step()
        narrow, batch = self.decoder.shape.widths[0], len(self.tokens)
        last = self.tokens.shape[1] - 1
        for row in range(batch):
            ids = torch.full((batch, narrow), -1)
            ids[row, 0] = self.tokens[row, last]
            start = [last if r == row else 0 for r in range(batch)]
            self.compare("idle rows stay as they are", row, last, self.forward(ids, start)[row, 0])

    def refusals(self) -> None:
        shape, width = self.decoder.shape, self.decoder.shape.widths[0]
        ids, start = torch.zeros(shape.batch_size, width, dtype=torch.int64), torch.zeros(shape.batch_size)
        start = start.long()
        unknown = next(w for w in range(1, shape.widths[-1] + 2) if w not in shape.widths)
        cases = {
            "another width": (torch.zeros(shape.batch_size, unknown, dtype=torch.int64), start, ValueError),
            "another batch": (torch.zeros(shape.batch_size + 1, width, dtype=torch.int64), start, ValueError),
            "another dtype": (ids.int(), start, TypeError),
            "floating positions": (ids, start.float(), TypeError),
            "an id beyond the vocabulary": (ids + shape.vocab_size, start, ValueError),
            "an id below -1": (ids - 2, start, ValueError),
            "a position beyond the last": (ids, start + shape.max_length, ValueError),
            "a negative position": (ids, start - 1, ValueError),
        }
        for name, (bad_ids, bad_start, error) in cases.items():
            try:
                self.decoder.forward(bad_ids, bad_start)
            except error:
                continue
            except Exception as other:
                raise AssertionError(f"{name} must raise {error.__name__}: {other!r}") from other
            raise AssertionError(f"{name} must be refused")
        self.beside_idle_rows()
