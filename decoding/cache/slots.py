"""Feeding a decoder: only the tokens that are not in its KV cache."""

import bisect
import os
import threading
import weakref
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..forward_checks import require_decoder
from ..history import History
from ..optional_protocols import HasSpans, tree_widths
from ..protocols import Decoder, SamplesOnDevice, ScoresTrees
from ..scores import Scores
from ..trees import first_branch
from .cached_tokens import CachedTokens
from .columns import columns_of
from .lost_lock import LostLock

Ints = NDArray[np.int64]

# The program number of tree forwards, whose rounding differs from that of other programs.
_TREE = 0

# Added to the width of a sampling forward: a program of its own as well.
_SAMPLING = 1 << 32

# By identity: decoders that compare equal may have different caches.
_slots: "dict[int, Slots]" = {}
# Concurrent threads must get the same slots.
_slots_lock = threading.Lock()


class Slots:
    """
    A decoder and the tokens in its KV cache.

    :meth:`feed` compares them with the requested tokens, keeps the common prefix, and feeds the rest
    in compiled widths. A prompt, a new row in a running batch, a lagging draft model, a reused
    prefix, an edit and a rewind are all the same call; accepted tokens need not be reported.

    There is one object per decoder: get it with :meth:`of`. Then several generators may share a
    decoder, also in several threads if each holds :attr:`lock` from a feed to the last use of its
    logits.

    One generator runs per step. Sharing a decoder is correct but slow: each re-feeds what the others
    overwrote. Turns of whole generations would feed less, but an unfinished stream would block all
    others, and deadlock its own thread.
    """

    def __init__(self, decoder: Decoder) -> None:
        require_decoder(decoder)
        self.decoder = decoder
        shape = decoder.shape
        self._widths = shape.widths
        self._spans: tuple[int, ...] = tuple(decoder.spans) if isinstance(decoder, HasSpans) else ()
        self._scored = [width for width in shape.widths if width <= shape.scored_width]
        self.tree_widths: tuple[int, ...] = tree_widths(decoder)
        """Columns of the decoder's tree forwards; empty if there are none."""

        self.may_sample = isinstance(decoder, SamplesOnDevice)
        """Whether the decoder implements :class:`~..protocols.SamplesOnDevice`."""

        self._cached = CachedTokens(shape.batch_size, shape.max_length)
        self.batch_size = shape.batch_size
        """Rows of every forward."""

        self.supports_decode_step = shape.widths[0] == 1
        """Whether :meth:`decode_step` is available."""

        self.changes = 0
        """Incremented by everything that may change the cache."""

        self.lock: threading.RLock | LostLock = threading.RLock()
        """To be held while logits are in use: the next forward invalidates them."""

        self.logits_in_use = False
        """True while the current logits are in use; feeding then raises."""

        self.forwards = 0
        """Number of forwards."""

        self.columns = 0
        """Number of columns in them, of all rows."""

        self.tokens = 0
        """Number of columns with a token; the others were padding."""

    @classmethod
    def of(cls, decoder: Decoder) -> "Slots":
        """The slots of *decoder*, always the same object."""
        with _slots_lock:
            slots = _slots.get(id(decoder))
            if slots is None:
                require_decoder(decoder)
                try:
                    proxy = weakref.proxy(decoder)
                except TypeError as error:
                    rule = "a decoder must be an object that Python can refer to weakly"
                    raise TypeError(f"{rule} (__slots__ needs '__weakref__'): got {decoder!r}") from error
                # Built from the decoder itself, since a proxy hides its optional protocols. Afterwards
                # only a proxy is kept, so that the slots do not keep the decoder alive.
                slots = _slots[id(decoder)] = cls(decoder)
                slots.decoder = proxy
                weakref.finalize(decoder, _slots.pop, id(decoder), None)
            return slots

    def forget(self) -> None:
        """Take the cache as empty: for a decoder that was fed by other means."""
        self.changes += 1
        self._cached.forget()

    def feed(self, ids: Tensor, length: Tensor, need: Tensor, exact_width: bool = False) -> Tensor:
        """
        Bring each row's cache up to date, and score the successors of its last tokens.

        Args:
            ids: ``[rows, capacity]`` int64; *rows* may be fewer than the decoder's.

            length: The number of tokens of each row, ``[rows]``.

            need: How many of the last tokens to score, ``[rows]``, at most the scored width; 0
                leaves a row idle.

            exact_width: Feed everything through the widest program that scores every column.
                Slower for prompts, but without the rounding differences between programs of
                different widths.

        Returns:
            Logits ``[rows, max(need), vocab]``, left-aligned: column *i* follows token
            ``length - need + i``. Undefined beyond a row's own need. Valid until the next forward.

        Raises:
            ValueError: More is needed than the decoder scores.

            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        return self._feed(ids, length, need, exact_width, None)[1].logits

    def feed_and_sample(
        self, history: History, length: Tensor, need: Tensor, exact_width: bool = False
    ) -> tuple[Tensor | None, Scores]:
        """
        :meth:`feed` for a decoder that :class:`~..protocols.SamplesOnDevice`.

        Args:
            history: The tokens, on one path, and the rows' random streams.

            length: As in :meth:`feed`.

            need: As in :meth:`feed`.

            exact_width: As in :meth:`feed`.

        Returns:
            The sampled ids ``[rows, max(need)]``, in columns as the logits of :meth:`feed`; None if the
            last forward's width does not sample. And the raw logits.

        Raises:
            ValueError: As in :meth:`feed`.

            RuntimeError: As in :meth:`feed`.
        """
        return self._feed(history.ids[:, 0], length, need, exact_width, history)

    def _feed(
        self, ids: Tensor, length: Tensor, need: Tensor, exact_width: bool, history: History | None
    ) -> tuple[Tensor | None, Scores]:
        self._require_returned()
        # ids may be a view of a wider buffer; numpy shares its memory and costs a tenth of torch here.
        tokens, ends, wanted = ids.numpy(), length.numpy(), need.numpy()
        rows, most = len(wanted), int(wanted.max())
        if most > self._scored[-1]:
            raise ValueError(f"'need' must be <= {self._scored[-1]}, the scored width: got {most}")
        widths = self._scored[-1:] if exact_width else self._widths
        common = self._cached.common(tokens, ends)
        if exact_width:
            program = self._name(widths[0], True, self._samples(widths[0], history))
            common = np.minimum(common, self._cached.leading(len(tokens), program))
        starts = np.where(wanted > 0, np.minimum(common, ends - wanted), ends)
        scoring = widths if most == 1 else [w for w in widths if w in self._scored]
        while (pending := ends - starts).max() > scoring[-1]:
            # The columns to score are held back, so that one forward scores them together. Samples of
            # earlier forwards are discarded; they are made only if one program must feed everything.
            discarded = history if exact_width else None
            starts = self._advance(tokens, starts, pending - wanted, widths, exact_width, discarded)
        width = _smallest(scoring, int(pending.max()))
        sampled, raw = self._forward(tokens, starts, pending, width, exact_width, history)
        first = pending - wanted
        return (
            None if sampled is None else _columns(sampled[:rows], first, most),
            Scores(lambda: _columns(raw.logits[:rows], first, most)),
        )

    def feed_tree(
        self, ids: Tensor, length: Tensor, draft_ids: Tensor, parents: Tensor, active: Tensor
    ) -> Tensor:
        """
        Bring each row's cache up to date, and score the successors of its tokens and of a draft tree's.

        The first branch of the tree counts as fed. Tokens accepted along it are not fed again; another
        accepted path is fed by the next call.

        Args:
            ids: ``[rows, capacity]`` int64; *rows* may be fewer than the decoder's.

            length: The number of tokens of each row, ``[rows]``, at least 1.

            draft_ids: ``[rows, n]`` int64; -1 after a row's last.

            parents: ``[rows, n]`` int64: the draft token before each, or -1 for the row's last token;
                as :attr:`~..protocols.Draft.parents`.

            active: ``[rows]`` bool; other rows are unchanged.

        Returns:
            Logits ``[rows, 1 + n, vocab]``: column 0 follows the row's last token, column 1 + *j*
            draft token *j*. Undefined after a row's last draft token and in idle rows. Valid until the
            next forward.

        Raises:
            ValueError: The decoder scores no trees, or only smaller ones.

            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        self._require_returned()
        tokens, ends, drafted = ids.numpy(), length.numpy(), draft_ids.numpy()
        num_drafted = np.where(active.numpy(), (drafted >= 0).sum(axis=1), 0)
        self._require_tree(int(num_drafted.max()))
        last = active.numpy().astype(np.int64)
        starts = np.where(last > 0, np.minimum(self._cached.common(tokens, ends), ends - 1), ends)
        while (columns := (ends - starts + num_drafted).max()) > self.tree_widths[-1]:
            starts = self._advance(tokens, starts, ends - starts - last, self._widths)
        width = _smallest(self.tree_widths, int(columns))
        logits = self._forward_tree(tokens, starts, ends, drafted, parents.numpy(), width)
        return _columns(logits[: len(tokens)], ends - starts - last, 1 + drafted.shape[1])

    def decode_step(self, newest: Sequence[tuple[int, int, int]]) -> Tensor:
        """
        Feed one token to each of some rows, and score its successors.

        Equivalent to :meth:`feed` if only the last token of each row is missing, which is known if
        :attr:`changes` has not changed since the caller's last feed.

        Args:
            newest: Row, position and token of each; other rows are idle.

        Returns:
            Logits ``[batch, 1, vocab]`` of all of the decoder's rows. Valid until the next forward.

        Raises:
            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        self._require_returned()
        self.changes += 1
        # New arrays each time: a decoder may still read them after it returned.
        ids, cache_pos = np.empty((self.batch_size, 1), np.int64), np.zeros(self.batch_size, np.int64)
        ids.fill(-1)
        for row, position, token in newest:
            ids[row, 0], cache_pos[row] = token, position
        self._cached.forget_after_each(newest)
        logits = self.decoder.forward(torch.from_numpy(ids), torch.from_numpy(cache_pos))
        self._require_logits(logits, 1)
        self.forwards += 1
        self.columns += self.batch_size
        self.tokens += len(newest)
        self._cached.remember_each(newest, self._name(1, False))
        return logits

    def _require_returned(self) -> None:
        if self.logits_in_use:
            raise RuntimeError(
                "a processor, a sampler, a stop condition or a verification must not use the decoder whose "
                "logits it looks at: give it one of its own"
            )

    def _require_tree(self, num_drafted: int) -> None:
        if not self.tree_widths:
            raise ValueError(
                "the decoder must score trees, with tree_widths and forward_tree: got one that does not"
            )
        if num_drafted >= self.tree_widths[-1]:
            raise ValueError(
                f"a tree must have < {self.tree_widths[-1]} draft tokens, the decoder's largest tree width: "
                f"got {num_drafted}"
            )

    def _advance(
        self,
        tokens: Ints,
        starts: Ints,
        rest: Ints,
        widths: Sequence[int],
        exact_width: bool = False,
        history: History | None = None,
    ) -> Ints:
        """Feed up to one forward of the *rest*, unscored; return the rows' new starts."""
        width = _smallest(widths, int(rest.max()))
        count = np.minimum(rest, width)
        self._forward(tokens, starts, count, width, exact_width, history)
        return starts + count

    def _samples(self, width: int, history: History | None) -> bool:
        return history is not None and width in cast(SamplesOnDevice, self.decoder).sampling_widths

    def _name(self, width: int, exact_width: bool, sampling: bool = False) -> int:
        """The number of the program of *width*; negative if it attends to the whole span."""
        number = width + _SAMPLING if sampling else width
        return -number if exact_width and len(self._spans) > 1 else number

    def _forward(
        self,
        tokens: Ints,
        starts: Ints,
        count: Ints,
        width: int,
        exact_width: bool = False,
        history: History | None = None,
    ) -> tuple[Tensor | None, Scores]:
        """
        Feed *count* tokens of each row from *starts* on, through the program of *width*.

        Returns:
            The sampled ids, if the program samples and *history* is given, and the logits.
        """
        self.changes += 1
        shape = self.decoder.shape
        ids = np.full((shape.batch_size, width), -1, dtype=np.int64)
        cache_pos = np.zeros(shape.batch_size, dtype=np.int64)
        fed = np.flatnonzero(count).tolist()
        # A wide forward scores its last column only, so tokens are right-aligned.
        right = width > shape.scored_width
        for row in fed:
            start, n = int(starts[row]), int(count[row])
            indent = width - n if right else 0
            ids[row, indent : indent + n] = tokens[row, start : start + n]
            cache_pos[row] = start - indent
            self._cached.forget_after(row, start, tokens[row, start : start + n])
        sampled, samples = None, self._samples(width, history)
        program = self._name(width, exact_width, samples)
        # A program of a shorter span rounds differently.
        whole = {"span": shape.max_length} if program < 0 else {}
        columns, first = torch.from_numpy(ids), torch.from_numpy(cache_pos)
        if samples:
            before = columns_of(cast(History, history), starts, starts + count, 1 if right else width, shape)
            sampled, raw = cast(SamplesOnDevice, self.decoder).forward_and_sample(
                columns, first, before, **whole
            )
            self._require("ids", sampled, before.length.shape)
        else:
            logits = self.decoder.forward(columns, first, **whole)
            self._require_logits(logits, 1 if right else width)
            raw = Scores(lambda: logits)
        self._count(ids)
        for row in fed:
            start, n = int(starts[row]), int(count[row])
            self._cached.remember(row, start, tokens[row, start : start + n], program)
        return sampled, raw

    def _forward_tree(
        self, tokens: Ints, starts: Ints, ends: Ints, drafted: Ints, parents: Ints, width: int
    ) -> Tensor:
        """Feed the tokens of each row from *starts* to *ends* as a chain, and the draft tree after it."""
        self.changes += 1
        batch = self.decoder.shape.batch_size
        ids = np.full((batch, width), -1, dtype=np.int64)
        before = np.full_like(ids, -1)
        cache_pos = np.zeros(batch, dtype=np.int64)
        fed = np.flatnonzero(ends > starts).tolist()
        for row in fed:
            start, stem = int(starts[row]), int(ends[row] - starts[row])
            n = stem + int((drafted[row] >= 0).sum())
            ids[row, :stem] = tokens[row, start : start + stem]
            ids[row, stem:n] = drafted[row, : n - stem]
            before[row, :stem] = np.arange(-1, stem - 1)
            before[row, stem:n] = stem + parents[row, : n - stem]
            cache_pos[row] = start
        branch = first_branch(ids, before)
        for row in fed:
            self._cached.forget_after(row, int(starts[row]), ids[row, branch[row]])
        decoder = cast(ScoresTrees, self.decoder)
        logits = decoder.forward_tree(
            torch.from_numpy(ids), torch.from_numpy(cache_pos), torch.from_numpy(before)
        )
        self._require_logits(logits, width)
        self._count(ids)
        for row in fed:
            self._cached.remember(row, int(starts[row]), ids[row, branch[row]], _TREE)
        return logits

    def _require_logits(self, logits: Tensor, columns: int) -> None:
        shape = self.decoder.shape
        self._require("logits", logits, (shape.batch_size, columns, shape.vocab_size))

    def _require(self, what: str, found: Tensor, expected: Sequence[int]) -> None:
        if found.shape != tuple(expected):
            raise ValueError(
                f"forward must return {what} of the shape {list(expected)}: got {list(found.shape)}"
            )

    def _count(self, ids: Ints) -> None:
        self.forwards += 1
        self.columns += ids.size
        self.tokens += int((ids >= 0).sum())


def _columns(values: Tensor, first: Ints, count: int) -> Tensor:
    """
    *count* columns of each row, from its *first* on; undefined beyond the last.

    *values* is ``[rows, columns]`` or ``[rows, columns, vocab]``; a single column is returned as it is.
    """
    if values.shape[1] == 1:
        return values
    if not first.any() and count <= values.shape[1]:
        return values[:, :count]
    columns = (torch.from_numpy(first)[:, None] + torch.arange(count)).clamp(max=values.shape[1] - 1)
    if values.dim() == 2:
        return values.gather(1, columns)
    return values.gather(1, columns[..., None].expand(*columns.shape, values.shape[-1]))


def _after_fork_in_child() -> None:
    """Replace locks that another thread held: it does not exist in the child, which would wait for ever."""
    global _slots_lock
    _slots_lock = threading.Lock()
    for slots in list(_slots.values()):
        if slots.lock.acquire(blocking=False):
            slots.lock.release()
        else:
            slots.lock = LostLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _smallest(widths: Sequence[int], columns: int) -> int:
    """The smallest of *widths* that fits *columns*, or else the largest."""
    return widths[min(bisect.bisect_left(widths, columns), len(widths) - 1)]
