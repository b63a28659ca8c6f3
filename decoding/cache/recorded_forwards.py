"""Forwards of a decoder, each recorded in what is known of its KV cache."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..feed_counts import FeedCounts
from ..history import History
from ..optional_protocols import HasSpans, QueuedSample, QueuesForwards
from ..protocols import Decoder, SamplesOnDevice, ScoresTrees
from ..scores import Scores
from ..trees import first_branch
from .cached_tokens import CachedTokens
from .columns import columns_of

Ints = NDArray[np.int64]

# The program number of tree forwards, whose rounding differs from that of other programs.
_TREE = 0

# Added to the width of a sampling forward: a program of its own as well.
_SAMPLING = 1 << 32


class RecordedForwards:
    """
    Calls a decoder's programs, and records what each wrote to the cache, and which program it was.

    Before a forward, the slots that it writes are forgotten, so that after an exception the record claims
    nothing that may not be there.

    Args:
        decoder: The decoder; its optional protocols are read once.

        kept: What is called: the decoder, or a weak proxy of it.

        cached: The record of its cache.
    """

    def __init__(self, decoder: Decoder, kept: Decoder, cached: CachedTokens) -> None:
        self._decoder, self._cached, self._shape = kept, cached, decoder.shape
        self._has_spans = isinstance(decoder, HasSpans) and len(decoder.spans) > 1
        self.counts = FeedCounts()
        """What was fed so far."""

    def queue(
        self, history: History, length: Sequence[int], rows: Sequence[int], after: QueuedSample | None = None
    ) -> QueuedSample:
        """
        Queue a forward of the last token of each row, and its sample.

        What is fed must be told to :meth:`record_queued` once it is known. Only for a decoder that
        :class:`~..optional_protocols.QueuesForwards`.

        Args:
            history: The tokens, as in :meth:`~.slots.Slots.feed`. All but the last must be in the cache.

            length: The number of tokens of each row, the last included.

            rows: The rows to feed; others are idle.

            after: The sample that is the last token; None if the history has it.
        """
        shape, tokens = self._shape, history.ids.numpy()[:, 0]
        ids, cache_pos = np.full((shape.batch_size, 1), -1, np.int64), np.zeros(shape.batch_size, np.int64)
        fed = torch.zeros(shape.batch_size, dtype=torch.bool)
        for row in rows:
            fed[row], cache_pos[row] = True, length[row] - 1
            ids[row, 0] = tokens[row, length[row] - 1]
            self._cached.forget_from(row, length[row] - 1)
        ends = np.array(length)
        before = columns_of(history, ends - 1, ends, 1, shape)
        columns: Tensor | QueuedSample = torch.from_numpy(ids) if after is None else after
        decoder = cast(QueuesForwards, self._decoder)
        return decoder.queue_and_sample(columns, torch.from_numpy(cache_pos), before, fed)

    def record_queued(self, length: Sequence[int], rows: Sequence[int], tokens: Sequence[int]) -> None:
        """After :meth:`queue`: the token that each row was fed; -1 is none."""
        program = self._name(1, False, sampling=True)
        for row in rows:
            if tokens[row] >= 0:
                new = np.array([tokens[row]], np.int64)
                self._cached.remember(row, length[row] - 1, new, program)

    def read_queued(self, sample: QueuedSample, rows: Sequence[int]) -> Tensor:
        """The ids of a queued forward, ``[batch, 1]``, which counts as one over *rows* from now on."""
        ids = sample.read()
        self._require("ids", ids, (self._shape.batch_size, 1))
        self.count(FeedCounts(1, len(ids), len(rows)))
        return ids

    def forget_queued(self, length: Sequence[int], rows: Sequence[int]) -> None:
        """After :meth:`record_queued`, where the forward may not have run: its tokens are not cached."""
        for row in rows:
            self._cached.forget_from(row, length[row] - 1)

    def count(self, more: FeedCounts) -> None:
        """Add to :attr:`counts`."""
        self.counts = self.counts.plus(more)

    def _samples(self, width: int, history: History | None) -> bool:
        return history is not None and width in cast(SamplesOnDevice, self._decoder).sampling_widths

    def exact_program(self, width: int, sampling: History | None) -> int:
        """The number of the program of :meth:`forward` with an exact *width*."""
        return self._name(width, True, self._samples(width, sampling))

    def _name(self, width: int, exact_width: bool, sampling: bool = False) -> int:
        """
        The number of the program of *width*; negative if it attends to the whole span.

        Also where there is one span: what other feeds wrote before a slot was computed from other programs.
        """
        number = width + _SAMPLING if sampling else width
        return -number if exact_width else number

    def forward(
        self,
        tokens: Ints,
        starts: Sequence[int],
        stops: Sequence[int],
        width: int,
        exact_width: bool = False,
        sampling: History | None = None,
    ) -> tuple[Tensor | None, Scores]:
        """
        Feed the tokens of each row from *starts* to *stops*, through the program of *width*.

        Args:
            tokens: The tokens of each row, ``[rows, capacity]``.

            starts: From where on each row is fed.

            stops: Up to where; an idle row's start.

            width: Columns of the forward.

            exact_width: Whether the program attends to the whole span.

            sampling: The history to sample for, if the device does and the width can; else None.

        Returns:
            The sampled ids, if the program samples for the history *sampling*, and the logits; of
            these rows.
        """
        shape = self._shape
        # New arrays each time: a decoder may still read them after it returned.
        ids, cache_pos = np.empty((shape.batch_size, width), np.int64), np.zeros(shape.batch_size, np.int64)
        ids.fill(-1)
        # A wide forward scores its last column only, so tokens are right-aligned.
        right = width > shape.scored_width
        fed = []
        for row, start in enumerate(starts):
            count = stops[row] - start
            if count > 0:
                new = tokens[row, start : start + count]
                fed.append((row, start, new))
                indent = width - count if right else 0
                ids[row, indent : indent + count] = new
                cache_pos[row] = start - indent
                self._cached.forget_after(row, start, new)
        sampled, samples = None, self._samples(width, sampling)
        program = self._name(width, exact_width, samples)
        # A program of a shorter span rounds differently.
        whole = {"span": shape.max_length} if program < 0 and self._has_spans else {}
        columns, first = torch.from_numpy(ids), torch.from_numpy(cache_pos)
        if samples:
            before = columns_of(
                cast(History, sampling), np.array(starts), np.array(stops), 1 if right else width, shape
            )
            sampled, raw = cast(SamplesOnDevice, self._decoder).forward_and_sample(
                columns, first, before, **whole
            )
            self._require("ids", sampled, before.length.shape)
        else:
            logits = self._decoder.forward(columns, first, **whole)
            self._require_logits(logits, 1 if right else width)
            raw = Scores.of(logits)
        count = 0
        for row, start, new in fed:
            self._cached.remember(row, start, new, program)
            count += len(new)
        self.count(FeedCounts(1, ids.size, count))
        return sampled, raw

    def forward_tree(
        self,
        tokens: Ints,
        starts: Sequence[int],
        ends: Sequence[int],
        drafted: Ints,
        parents: Ints,
        width: int,
    ) -> Tensor:
        """
        Feed the tokens of each row from *starts* to *ends* as a chain, and the draft tree after it.

        Args:
            tokens: The tokens of each row, ``[rows, capacity]``.

            starts: From where on each row is fed; an idle row's end.

            ends: The number of tokens of each row.

            drafted: The tree's tokens, ``[rows, n]``; -1 after a row's last.

            parents: Their parents, as in a :class:`~..protocols.Draft`.

            width: Columns of the forward.

        Returns:
            The logits of all columns, ``[batch, width, vocab]``.
        """
        batch = self._shape.batch_size
        ids = np.full((batch, width), -1, dtype=np.int64)
        before = np.full_like(ids, -1)
        cache_pos = np.zeros(batch, dtype=np.int64)
        fed = [(row, start) for row, start in enumerate(starts) if ends[row] > start]
        for row, start in fed:
            stem = ends[row] - start
            n = stem + int((drafted[row] >= 0).sum())
            ids[row, :stem] = tokens[row, start : start + stem]
            ids[row, stem:n] = drafted[row, : n - stem]
            before[row, :stem] = np.arange(-1, stem - 1)
            before[row, stem:n] = stem + parents[row, : n - stem]
            cache_pos[row] = start
        branch = first_branch(ids, before)
        for row, start in fed:
            self._cached.forget_after(row, start, ids[row, branch[row]])
        decoder = cast(ScoresTrees, self._decoder)
        logits = decoder.forward_tree(
            torch.from_numpy(ids), torch.from_numpy(cache_pos), torch.from_numpy(before)
        )
        self._require_logits(logits, width)
        for row, start in fed:
            self._cached.remember(row, start, ids[row, branch[row]], _TREE)
        self.count(FeedCounts(1, ids.size, int((ids >= 0).sum())))
        return logits

    def _require_logits(self, logits: Tensor, columns: int) -> None:
        shape = self._shape
        self._require("logits", logits, (shape.batch_size, columns, shape.vocab_size))

    def _require(self, what: str, found: Tensor, expected: Sequence[int]) -> None:
        if found.shape != tuple(expected):
            raise ValueError(
                f"forward must return {what} of the shape {list(expected)}: got {list(found.shape)}"
            )
