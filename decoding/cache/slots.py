"""Feeding a decoder: only the tokens that are not in its KV cache."""

import bisect
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from operator import add, sub
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..after_fork import call_after_fork
from ..feed_counts import FeedCounts
from ..forward_checks import require_decoder
from ..history import History
from ..optional_protocols import (
    AnyDecoder,
    CopiesRows,
    OffersFeeder,
    QueuesForwards,
    does_skip_padding,
    is_bit_exact,
    tree_widths,
)
from ..protocols import Decoder, Draft, SamplesOnDevice
from ..scores import Scores
from ..token_feeder import Fed, TokenFeeder, Tokens
from ..trees import parents_of
from ..validation import is_whole
from .cached_tokens import CachedTokens
from .feed_checks import check_source, checked_feed
from .lost_lock import LostLock
from .recorded_forwards import RecordedForwards
from .row_feeder import RowFeeder

Ints = NDArray[np.int64]

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

    def __init__(self, decoder: Decoder, kept: Decoder | None = None) -> None:
        """
        Begin with an empty cache.

        Args:
            decoder: The decoder; its optional protocols are read once.

            kept: What is kept and called in its place: a weak proxy, which hides optional protocols.
        """
        require_decoder(decoder)
        self.decoder = kept = decoder if kept is None else kept
        self.shape = shape = decoder.shape
        self._scored = tuple(width for width in shape.widths if width <= shape.scored_width)
        self.tree_widths: tuple[int, ...] = tree_widths(decoder)
        """Columns of the decoder's tree forwards; empty if there are none."""

        self.may_sample = isinstance(decoder, SamplesOnDevice)
        """Whether the decoder implements :class:`~..protocols.SamplesOnDevice`."""

        self.may_queue = isinstance(decoder, QueuesForwards)
        """Whether the decoder implements :class:`~..optional_protocols.QueuesForwards`."""

        self.bit_exact = is_bit_exact(decoder)
        """Whether a token's logits depend on its row's tokens alone."""

        self.skips_padding = does_skip_padding(decoder)
        """Whether padding takes the decoder less time than tokens."""

        self._owner: Callable[[], Decoder | None] = lambda: None
        self._cached = CachedTokens(shape.batch_size, shape.max_length)
        self._rows = RowFeeder(decoder, kept, self._cached)
        self.recorded = RecordedForwards(decoder, kept, self._cached)
        """The decoder's forwards."""

        self.lock: threading.RLock | LostLock = threading.RLock()
        """To be held while logits are in use: the next forward invalidates them."""

        self.logits_in_use = False
        """True while the current logits are in use; feeding then raises."""

        self.rows = shape.batch_size
        """Rows of a forward."""

    @classmethod
    def of(cls, decoder: Decoder) -> "Slots":
        """The slots of *decoder*, always the same object."""
        with _slots_lock:
            slots = _slots.get(id(decoder))
            # An interrupt may prevent the removal of a dead decoder's slots, whose number another has now.
            if slots is None or slots._owner() is not decoder:
                require_decoder(decoder)
                try:
                    proxy, owner = weakref.proxy(decoder), weakref.ref(decoder)
                except TypeError as error:
                    rule = "a decoder must be an object that Python can refer to weakly"
                    raise TypeError(f"{rule} (__slots__ needs '__weakref__'): got {decoder!r}") from error
                # Only a proxy is kept, so that the slots do not keep the decoder alive.
                slots = _slots[id(decoder)] = cls(decoder, proxy)
                slots._owner = owner
                weakref.finalize(decoder, _slots.pop, id(decoder), None)
            return slots

    @property
    def counts(self) -> FeedCounts:
        """What was fed so far."""
        return self.recorded.counts

    @property
    def row_widths(self) -> tuple[int, ...]:
        """Columns of the decoder's forwards of one row; empty if there are none."""
        return self._rows.widths

    @property
    def copied(self) -> list[int]:
        """The tokens that each row was copied from others so far, rather than fed."""
        return self._rows.copied

    def copy_rows(self, source: Sequence[int]) -> bool:
        """
        Make each row a copy of the row that *source* names, all at once.

        Returns:
            False where the decoder cannot: then :meth:`feed` feeds what is missing.

        Raises:
            ValueError: *source* does not name a row for each row.

            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        self.require_returned()
        check_source(source, self.shape.batch_size)
        if not self._rows.copies:
            return False
        before = list(self._cached.valid)
        upto = max((before[one] for row, one in enumerate(source) if one != row), default=0)
        # Until it is done, rows that are written hold nothing.
        self._cached.valid = [before[row] if row == one else 0 for row, one in enumerate(source)]
        if upto:
            cast(CopiesRows, self.decoder).copy_rows(torch.tensor(source), upto)
        self._cached.rearrange(source, before)
        return True

    def forget(self) -> None:
        """Take the cache as empty: for a decoder that was fed by other means."""
        self._cached.forget()

    def time_forward(self, width: int, tokens: int) -> float:
        """
        Seconds of a forward of *width* columns.

        All are padding, which changes nothing. Where padding takes less time than tokens, the first *tokens*
        columns are tokens behind what the rows hold; a row that is almost full then forgets its last ones.

        Raises:
            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        self.require_returned()
        starts = [0] * self.shape.batch_size
        ids = torch.full((len(starts), width), -1)
        if self.skips_padding:
            starts = [min(held, self.shape.max_length - width) for held in self._cached.valid]
            for row, start in enumerate(starts):
                self._cached.forget_from(row, start)
            ids[:, :tokens] = 0
        begun = time.perf_counter()
        # Reading a value synchronises with an asynchronous device.
        self.decoder.forward(ids, torch.tensor(starts))[0, 0, 0].item()
        return time.perf_counter() - begun

    def overlap(self, ids: Tokens) -> list[int]:
        """How many leading *ids* each row of the decoder holds already: where a newcomer should sit."""
        tokens = np.asarray(ids, dtype=np.int64)
        return [self._cached.common(row, tokens, len(tokens)) for row in range(self.shape.batch_size)]

    def held(self) -> list[int]:
        """How many tokens each row of the decoder holds."""
        return list(self._cached.valid)

    def missing(self, history: History, length: Tensor) -> Tensor:
        """
        How many of each row's tokens are not fed yet.

        Args:
            history: The tokens, as in :meth:`feed`.

            length: The number of tokens of each row, ``[rows]``.

        Returns:
            ``[rows]`` int64.
        """
        tokens, ends = history.ids.numpy()[:, 0], length.tolist()
        return torch.tensor(
            [end - self._cached.common(row, tokens[row], end) for row, end in enumerate(ends)]
        )

    def feed(
        self,
        history: History,
        length: Tensor,
        need: Tensor,
        *,
        most: int | None = None,
        exact_width: bool = False,
        sample: bool = False,
    ) -> Fed:
        """
        Bring each row's cache up to date, and score the successors of its last tokens.

        Args:
            history: The tokens, on one path; its rows may be fewer than the decoder's. Its lengths
                are not read.

            length: The number of tokens of each row, ``[rows]``.

            need: How many of the last tokens to score, ``[rows]``, at most the scored width; 0
                leaves a row idle.

            most: Feed in one forward, of at most so many columns if *need* and the compiled widths
                allow it. Rows that lack more tokens are not ready: call again. None feeds everything.

            exact_width: Feed everything through the widest program that scores every column.
                Slower for prompts, but without the rounding differences between programs of
                different widths.

            sample: Whether the device samples, if the last forward's width does. Only for a decoder
                that :attr:`may_sample`; its random streams are the history's.

        Raises:
            TypeError: An argument of another type. Nothing has been fed.

            ValueError: A wrong shape, a length beyond the ids, or more needed than there is or the decoder
                scores. Nothing has been fed.

            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        self.require_returned()
        if not isinstance(exact_width, bool):
            raise TypeError(f"'exact_width' must be True or False: got {exact_width!r}")
        if most is not None and (not is_whole(most) or most < 1):
            raise ValueError(f"'most' must be a whole number >= 1, or None: got {most!r}")
        # Lists, since numpy takes longer for a few numbers.
        ends, wanted = checked_feed(history, length, need, self.shape.batch_size, self._scored[-1])
        tokens, columns = history.ids.numpy()[:, 0], max(wanted)
        widths = self._scored[-1:] if exact_width else self.shape.widths
        scoring = widths if columns == 1 or exact_width else self._scored
        sampling = history if sample else None
        # The columns to score are held back, so that one forward scores them together.
        held = list(map(sub, ends, wanted))
        program = self.recorded.exact_program(self._scored[-1], sampling) if exact_width else None
        starts = self._starts(tokens, ends, wanted, program)
        longest, waiting = max(map(sub, ends, starts)), list[int]()
        if longest > self._scored[-1] and not exact_width and (self._rows.copies or self._rows.widths):
            starts, waiting = self._catch_up(tokens, starts, ends, wanted, most)
            for row in waiting:
                held[row] = ends[row]
            longest = max(map(sub, ends, starts))
            if not longest:
                return Fed(Scores(_nothing_scored), [False] * len(ends), all_ready=False)
        while most is None and longest > scoring[-1]:
            # Samples of these forwards are discarded; they are made only if one program feeds everything.
            discarded = sampling if exact_width else None
            starts = self._advance(tokens, starts, held, widths, exact_width, discarded)
            longest = max(map(sub, ends, starts))
        if most is not None:
            limit = max(most, _smallest(scoring, columns))
            scoring = tuple(width for width in scoring if width <= limit)
        width = _smallest(scoring, longest)
        all_ready, ready, stops = longest <= width, [want > 0 for want in wanted], ends
        for row in waiting:
            ready[row] = all_ready = False
        if longest > width:
            fits = [end - start <= width for start, end in zip(starts, ends, strict=True)]
            ready = [want and fit for want, fit in zip(ready, fits, strict=True)]
            stops = [
                end if fit else min(start + width, rest)
                for start, end, rest, fit in zip(starts, ends, held, fits, strict=True)
            ]
        chosen, raw = self.recorded.forward(tokens, starts, stops, width, exact_width, sampling)
        if width > 1 or len(ends) < self.shape.batch_size:
            every, first = raw, list(map(sub, held, starts))
            raw = Scores(lambda: _columns(every.logits, first, columns))
            chosen = None if chosen is None else _columns(chosen, first, columns)
        return Fed(raw, ready, all_ready, chosen)

    def feed_tree(self, history: History, length: Tensor, draft: Draft, active: Tensor) -> Tensor:
        """
        Bring each row's cache up to date, and score the successors of its tokens and of a draft tree's.

        The first branch of the tree counts as fed. Tokens accepted along it are not fed again; another
        accepted path is fed by the next call.

        Args:
            history: The tokens, as in :meth:`feed`.

            length: The number of tokens of each row, ``[rows]``, at least 1.

            draft: A tree, ``[rows, n]``; -1 after a row's last draft token.

            active: ``[rows]`` bool; other rows are unchanged.

        Returns:
            Logits ``[rows, 1 + n, vocab]``: column 0 follows the row's last token, column 1 + *j*
            draft token *j*. Undefined after a row's last draft token and in idle rows. Valid until the
            next forward.

        Raises:
            ValueError: The decoder scores no trees, or only smaller ones.

            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        self.require_returned()
        tokens, drafted, feeding = history.ids.numpy()[:, 0], draft.ids.numpy(), active.tolist()
        counts = np.where(active.numpy(), (drafted >= 0).sum(axis=1), 0).tolist()
        self._require_tree(max(counts))
        ends = length.tolist()
        held = list(map(sub, ends, feeding))
        starts = self._starts(tokens, ends, feeding)
        with_draft = list(map(add, ends, counts))
        while max(map(sub, with_draft, starts)) > self.tree_widths[-1]:
            starts = self._advance(tokens, starts, held, self.shape.widths)
        width = _smallest(self.tree_widths, max(map(sub, with_draft, starts)))
        logits = self.recorded.forward_tree(tokens, starts, ends, drafted, parents_of(draft).numpy(), width)
        first = list(map(sub, held, starts))
        return _columns(logits, first, 1 + drafted.shape[1])

    def require_returned(self) -> None:
        """Raise ``RuntimeError`` while the logits are :attr:`logits_in_use`."""
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

    def _starts(
        self, tokens: Ints, ends: Sequence[int], wanted: Sequence[int], program: int | None = None
    ) -> list[int]:
        """
        From where on each row is fed: after its cached prefix, but at least the *wanted* last tokens.

        What another than *program* wrote is not used, if it is given. Idle rows are fed nothing.
        """
        starts = list(ends)
        for row, want in enumerate(wanted):
            if want:
                starts[row] = self._cached.common(row, tokens[row], ends[row] - want)
                if program is not None:
                    starts[row] = min(starts[row], self._cached.leading(row, program))
        return starts

    def _catch_up(
        self,
        tokens: Ints,
        starts: Sequence[int],
        ends: Sequence[int],
        wanted: Sequence[int],
        most: int | None,
    ) -> tuple[list[int], list[int]]:
        """Feed single rows and copy rows; return the rows' new starts, and rows that wait, which are idle."""
        begun = time.perf_counter()
        result = self._rows.catch_up(tokens, starts, ends, wanted, most)
        seconds, columns, fed = time.perf_counter() - begun, result.columns, result.tokens
        self.recorded.count(FeedCounts(result.forwards, columns, fed, columns, fed, seconds))
        for row in result.waiting:
            result.starts[row] = ends[row]
        return result.starts, result.waiting

    def _advance(
        self,
        tokens: Ints,
        starts: Sequence[int],
        held: Sequence[int],
        widths: Sequence[int],
        exact_width: bool = False,
        discarded: History | None = None,
    ) -> list[int]:
        """Feed up to one forward of the tokens up to *held*, unscored; return the rows' new starts."""
        width = _smallest(widths, max(map(sub, held, starts)))
        stops = [min(start + width, rest) for start, rest in zip(starts, held, strict=True)]
        self.recorded.forward(tokens, starts, stops, width, exact_width, discarded)
        return stops


def feeder_of(decoder: AnyDecoder) -> TokenFeeder:
    """What feeds *decoder*: a feeder of its own if it offers one, else its slots."""
    return decoder.feeder() if isinstance(decoder, OffersFeeder) else Slots.of(decoder)


def _nothing_scored() -> Tensor:
    raise RuntimeError("the logits of rows that are not ready must not be read")


def _columns(values: Tensor, first: Sequence[int], count: int) -> Tensor:
    """
    *count* columns of each row, from its *first* on; undefined beyond the last.

    *values* is ``[batch, columns]`` or ``[batch, columns, vocab]``, of all of the decoder's rows; a single
    column is returned as it is.
    """
    if len(first) < len(values):
        values = values[: len(first)]
    if values.shape[1] == 1:
        return values
    if not any(first) and count <= values.shape[1]:
        return values[:, :count]
    columns = (torch.tensor(first)[:, None] + torch.arange(count)).clamp(max=values.shape[1] - 1)
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


call_after_fork(_after_fork_in_child)


def _smallest(widths: Sequence[int], columns: int) -> int:
    """The smallest of *widths* that fits *columns*, or else the largest."""
    return widths[min(bisect.bisect_left(widths, columns), len(widths) - 1)]
