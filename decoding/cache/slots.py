"""The one rule by which tokens reach a decoder."""

import bisect
import threading
import weakref
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from ..optional_protocols import HasSpans, tree_widths
from ..protocols import Decoder, SamplesOnDevice, ScoresTrees
from ..scores import Scores
from ..trees import first_branch
from .columns import columns_of
from .fed_record import FedRecord

Ints = NDArray[np.int64]

# Instead of the width of a forward over a tree: it is another program, and adds up in another order.
_TREE = 0

# Added to the width of a forward that chooses: another program as well.
_SAMPLING = 1 << 32

# By identity: decoders may compare equal and still have a cache each.
_records: "dict[int, Slots]" = {}
# Two threads that meet a decoder at the same time must not have a record each.
_records_lock = threading.Lock()


class Slots:
    """
    A decoder, and the ids that each of its rows has been fed.

    :meth:`feed` compares them with the tokens that are wanted, takes the common prefix as
    valid, and feeds the rest in compiled widths. A prompt, a newcomer in a running batch, a
    draft that lags behind, a reused prefix, an edit, a rewind: all are this one call, and
    nobody tells anybody what was accepted.

    The record belongs to the decoder, not to whoever decodes: take it with :meth:`of`. Then
    several generators may share one decoder and even take turns, in several threads too if
    each holds :attr:`lock` from a feed to the last use of its logits.

    Turns are rounds. Nobody is inside while somebody else's round lasts, and each feeds again
    what the others have overwritten: right and fair, if slow. Whole generations in turn would
    feed less, but a stream that nobody reads on would keep all others waiting, for ever those of
    its own thread.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        shape = decoder.shape
        self._widths = shape.widths
        self._spans: tuple[int, ...] = tuple(decoder.spans) if isinstance(decoder, HasSpans) else ()
        self._scored = [width for width in shape.widths if width <= shape.scored_width]
        self.tree_widths: tuple[int, ...] = tree_widths(decoder)
        """Columns of the decoder's forwards over trees; empty if it scores none."""

        self.may_choose = isinstance(decoder, SamplesOnDevice)
        """Whether the decoder is one that :class:`~..protocols.SamplesOnDevice`."""

        self._record = FedRecord(shape.batch_size, shape.max_length)
        self.batch_size = shape.batch_size
        """Rows of every forward."""

        self.supports_decode_step = shape.widths[0] == 1
        """Whether :meth:`decode_step` is possible."""

        self.changes = 0
        """Grows with everything that may change what the cache holds."""

        self.lock = threading.RLock()
        """One user at a time: the next forward ends the life of the logits before it."""

        self.logits_in_use = False
        """Whether somebody still reads the logits: then what he calls must not feed."""

        self.forwards = 0
        """Forwards so far."""

        self.columns = 0
        """Their columns, in all rows."""

        self.tokens = 0
        """Those of the columns that held a token; the others were padding."""

    @classmethod
    def of(cls, decoder: Decoder) -> "Slots":
        """The slots of *decoder*: always the same ones."""
        with _records_lock:
            slots = _records.get(id(decoder))
            if slots is None:
                try:
                    proxy = weakref.proxy(decoder)
                except TypeError as error:
                    rule = "a decoder must be an object that Python can refer to weakly"
                    raise TypeError(f"{rule} (__slots__ needs '__weakref__'): got {decoder!r}") from error
                # Made of the decoder itself, which a proxy hides from a look at what it offers. But the
                # record must not keep it alive, and goes with it.
                slots = _records[id(decoder)] = cls(decoder)
                slots.decoder = proxy
                weakref.finalize(decoder, _records.pop, id(decoder), None)
            return slots

    def forget(self) -> None:
        """Take nothing as fed: for a decoder that somebody has fed by hand."""
        self.changes += 1
        self._record.forget()

    def feed(self, ids: Tensor, length: Tensor, need: Tensor, exact_width: bool = False) -> Tensor:
        """
        Bring each row's cache up to its tokens, and score what follows the last of them.

        Args:
            ids: ``[rows, capacity]`` int64; *rows* may be fewer than the decoder's.

            length: How many of them each row has, ``[rows]``.

            need: How many of the last ones are to be scored, ``[rows]``, at most the scored
                width; 0 leaves a row idle.

            exact_width: Feed everything through the widest program that scores every column.
                Slower for prompts, and free of the rounding by which programs of different
                widths differ.

        Returns:
            Logits ``[rows, max(need), vocab]``, left-aligned: column *i* follows token
            ``length - need + i``. A row with a smaller need has garbage behind it. Valid until
            the next forward.

        Raises:
            ValueError: More is needed than the decoder scores.

            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        return self._feed(ids, length, need, exact_width, None)[1].logits

    def feed_and_sample(
        self, history: History, length: Tensor, need: Tensor, exact_width: bool = False
    ) -> tuple[Tensor | None, Scores]:
        """
        The same where the decoder :class:`~..protocols.SamplesOnDevice`.

        Args:
            history: The tokens, on one path, and the rows' random streams.

            length: As in :meth:`feed`.

            need: As in :meth:`feed`.

            exact_width: As in :meth:`feed`.

        Returns:
            The choices ``[rows, max(need)]``, in columns as the logits of :meth:`feed`; None where the
            last forward was of a width that does not choose. And the raw logits.

        Raises:
            ValueError: As in :meth:`feed`.

            RuntimeError: As in :meth:`feed`.
        """
        return self._feed(history.ids[:, 0], length, need, exact_width, history)

    def _feed(
        self, ids: Tensor, length: Tensor, need: Tensor, exact_width: bool, choosing: History | None
    ) -> tuple[Tensor | None, Scores]:
        self._require_returned()
        # ids may be a view of a wider buffer; numpy shares its memory and costs a tenth of torch here.
        tokens, ends, wanted = ids.numpy(), length.numpy(), need.numpy()
        rows, most = len(wanted), int(wanted.max())
        if most > self._scored[-1]:
            raise ValueError(f"'need' must be <= {self._scored[-1]}, the scored width: got {most}")
        widths = self._scored[-1:] if exact_width else self._widths
        common = self._record.common(tokens, ends)
        if exact_width:
            program = self._name(widths[0], True, self._samples(widths[0], choosing))
            common = np.minimum(common, self._record.leading(len(tokens), program))
        starts = np.where(wanted > 0, np.minimum(common, ends - wanted), ends)
        scoring = widths if most == 1 else [w for w in widths if w in self._scored]
        while (pending := ends - starts).max() > scoring[-1]:
            # What is to be scored stays back, so that one forward scores it together. Its choices are
            # nobody's; they are made where all has to come through one program.
            unheard = choosing if exact_width else None
            starts = self._advance(tokens, starts, pending - wanted, widths, exact_width, unheard)
        width = _smallest(scoring, int(pending.max()))
        chosen, raw = self._forward(tokens, starts, pending, width, exact_width, choosing)
        first = pending - wanted
        return (
            None if chosen is None else _columns(chosen[:rows], first, most),
            Scores(lambda: _columns(raw.logits[:rows], first, most)),
        )

    def feed_tree(
        self, ids: Tensor, length: Tensor, guesses: Tensor, parents: Tensor, active: Tensor
    ) -> Tensor:
        """
        Bring each row's cache up to its tokens, and score what follows them and each guess of a tree.

        The first branch of the guesses counts as fed: whoever accepts tokens along it need not feed
        them again, and another accepted path is fed by the next call.

        Args:
            ids: ``[rows, capacity]`` int64; *rows* may be fewer than the decoder's.

            length: How many of them each row has, ``[rows]``, at least 1.

            guesses: ``[rows, n]`` int64; -1 behind a row's last.

            parents: ``[rows, n]`` int64: the guess before each, or -1 for the row's last token;
                as :attr:`~..protocols.Draft.parents`.

            active: ``[rows]`` bool; the others stay as they are.

        Returns:
            Logits ``[rows, 1 + n, vocab]``: column 0 follows the row's last token, column 1 + *j*
            guess *j*. Garbage behind a row's last guess and in idle rows. Valid until the next
            forward.

        Raises:
            ValueError: The decoder scores no trees, or none of so many guesses.

            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        self._require_returned()
        tokens, ends, drafted = ids.numpy(), length.numpy(), guesses.numpy()
        guessed = np.where(active.numpy(), (drafted >= 0).sum(axis=1), 0)
        self._require_tree(int(guessed.max()))
        last = active.numpy().astype(np.int64)
        starts = np.where(last > 0, np.minimum(self._record.common(tokens, ends), ends - 1), ends)
        while (columns := (ends - starts + guessed).max()) > self.tree_widths[-1]:
            starts = self._advance(tokens, starts, ends - starts - last, self._widths)
        width = _smallest(self.tree_widths, int(columns))
        logits = self._forward_tree(tokens, starts, ends, drafted, parents.numpy(), width)
        return _columns(logits[: len(tokens)], ends - starts - last, 1 + drafted.shape[1])

    def decode_step(self, newest: Sequence[tuple[int, int, int]]) -> Tensor:
        """
        Feed one token to each of some rows, and score what follows it.

        What :meth:`feed` does where only the last token of a row is missing, as the caller knows when
        :attr:`changes` is what it was after his own last feed.

        Args:
            newest: Row, position and token of each; the other rows stay idle.

        Returns:
            Logits ``[batch, 1, vocab]`` of all of the decoder's rows. Valid until the next forward.

        Raises:
            RuntimeError: The logits are :attr:`logits_in_use`.
        """
        self._require_returned()
        self.changes += 1
        # New ones each time: a decoder may still read them when it has returned.
        ids, cache_pos = np.empty((self.batch_size, 1), np.int64), np.zeros(self.batch_size, np.int64)
        ids.fill(-1)
        for row, position, token in newest:
            ids[row, 0], cache_pos[row] = token, position
        self._record.forget_after_each(newest)
        logits = self.decoder.forward(torch.from_numpy(ids), torch.from_numpy(cache_pos))
        self._require_logits(logits, 1)
        self.forwards += 1
        self.columns += self.batch_size
        self.tokens += len(newest)
        self._record.remember_each(newest, self._name(1, False))
        return logits

    def _require_returned(self) -> None:
        if self.logits_in_use:
            raise RuntimeError(
                "a processor, a sampler, a stop condition or a verification must not use the decoder whose "
                "logits it looks at: give it one of its own"
            )

    def _require_tree(self, guesses: int) -> None:
        if not self.tree_widths:
            raise ValueError(
                "the decoder must score trees, with tree_widths and forward_tree: got one that does not"
            )
        if guesses >= self.tree_widths[-1]:
            raise ValueError(
                f"a tree must have < {self.tree_widths[-1]} guesses, the decoder's largest tree width: "
                f"got {guesses}"
            )

    def _advance(
        self,
        tokens: Ints,
        starts: Ints,
        rest: Ints,
        widths: Sequence[int],
        exact_width: bool = False,
        choosing: History | None = None,
    ) -> Ints:
        """Feed up to one forward of the *rest*, none of which is to be scored: where the rows start then."""
        width = _smallest(widths, int(rest.max()))
        count = np.minimum(rest, width)
        self._forward(tokens, starts, count, width, exact_width, choosing)
        return starts + count

    def _samples(self, width: int, choosing: History | None) -> bool:
        return choosing is not None and width in cast(SamplesOnDevice, self.decoder).sampling_widths

    def _name(self, width: int, exact_width: bool, choosing: bool = False) -> int:
        """Of the program of *width*; negative if it attends to the whole span, whatever it is fed."""
        number = width + _SAMPLING if choosing else width
        return -number if exact_width and len(self._spans) > 1 else number

    def _forward(
        self,
        tokens: Ints,
        starts: Ints,
        count: Ints,
        width: int,
        exact_width: bool = False,
        choosing: History | None = None,
    ) -> tuple[Tensor | None, Scores]:
        """
        Feed *count* tokens of each row from *starts* on, through the program of *width*.

        Returns:
            What it chose, if it is one that chooses and *choosing* is given, and the logits.
        """
        self.changes += 1
        shape = self.decoder.shape
        ids = np.full((shape.batch_size, width), -1, dtype=np.int64)
        cache_pos = np.zeros(shape.batch_size, dtype=np.int64)
        fed = np.flatnonzero(count).tolist()
        # Only the last column of a wide forward is scored: there the last token has to stand.
        right = width > shape.scored_width
        for row in fed:
            start, n = int(starts[row]), int(count[row])
            indent = width - n if right else 0
            ids[row, indent : indent + n] = tokens[row, start : start + n]
            cache_pos[row] = start - indent
            self._record.forget_after(row, start, tokens[row, start : start + n])
        chosen, samples = None, self._samples(width, choosing)
        program = self._name(width, exact_width, samples)
        # A program of a shorter span adds up in another order.
        whole = {"span": shape.max_length} if program < 0 else {}
        columns, first = torch.from_numpy(ids), torch.from_numpy(cache_pos)
        if samples:
            before = columns_of(cast(History, choosing), starts, starts + count, 1 if right else width, shape)
            chosen, raw = cast(SamplesOnDevice, self.decoder).forward_and_sample(
                columns, first, before, **whole
            )
            self._require("ids", chosen, before.length.shape)
        else:
            logits = self.decoder.forward(columns, first, **whole)
            self._require_logits(logits, 1 if right else width)
            raw = Scores(lambda: logits)
        self._count(ids)
        for row in fed:
            start, n = int(starts[row]), int(count[row])
            self._record.remember(row, start, tokens[row, start : start + n], program)
        return chosen, raw

    def _forward_tree(
        self, tokens: Ints, starts: Ints, ends: Ints, guesses: Ints, parents: Ints, width: int
    ) -> Tensor:
        """Feed the tokens of each row from *starts* to *ends* as a stem, and the guesses upon it."""
        self.changes += 1
        batch = self.decoder.shape.batch_size
        ids = np.full((batch, width), -1, dtype=np.int64)
        before = np.full_like(ids, -1)
        cache_pos = np.zeros(batch, dtype=np.int64)
        fed = np.flatnonzero(ends > starts).tolist()
        for row in fed:
            start, stem = int(starts[row]), int(ends[row] - starts[row])
            n = stem + int((guesses[row] >= 0).sum())
            ids[row, :stem] = tokens[row, start : start + stem]
            ids[row, stem:n] = guesses[row, : n - stem]
            before[row, :stem] = np.arange(-1, stem - 1)
            before[row, stem:n] = stem + parents[row, : n - stem]
            cache_pos[row] = start
        branch = first_branch(ids, before)
        for row in fed:
            self._record.forget_after(row, int(starts[row]), ids[row, branch[row]])
        decoder = cast(ScoresTrees, self.decoder)
        logits = decoder.forward_tree(
            torch.from_numpy(ids), torch.from_numpy(cache_pos), torch.from_numpy(before)
        )
        self._require_logits(logits, width)
        self._count(ids)
        for row in fed:
            self._record.remember(row, int(starts[row]), ids[row, branch[row]], _TREE)
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
    *count* columns of each row, from its *first* on; garbage where there are no more.

    Of ``[rows, columns]`` or ``[rows, columns, vocab]``; one column is what there is of it.
    """
    if values.shape[1] == 1:
        return values
    if not first.any() and count <= values.shape[1]:
        return values[:, :count]
    columns = (torch.from_numpy(first)[:, None] + torch.arange(count)).clamp(max=values.shape[1] - 1)
    if values.dim() == 2:
        return values.gather(1, columns)
    return values.gather(1, columns[..., None].expand(*columns.shape, values.shape[-1]))


def _smallest(widths: Sequence[int], columns: int) -> int:
    """The smallest of *widths* that takes *columns*, or the largest there is."""
    return widths[min(bisect.bisect_left(widths, columns), len(widths) - 1)]
