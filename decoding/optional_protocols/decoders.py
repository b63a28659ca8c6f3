"""Optional capabilities of decoders, alone and combined."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from ..history import History
from ..protocols import Decoder, DecoderShape, ScoresTrees
from ..token_feeder import TokenFeeder


@runtime_checkable
class HasSpans(Protocol):
    """A decoder with KV buckets: it may attend to leading positions only (``span=`` of a forward)."""

    spans: Sequence[int]
    """The spans (KV buckets) in positions, ascending; the last is all of them."""


@runtime_checkable
class DescribesModel(Protocol):
    """A decoder that was made from a Hugging Face model, and keeps what the model says of itself."""

    @property
    def model_config(self) -> Any:
        """The model's ``PretrainedConfig``."""

    @property
    def generation_config(self) -> Any:
        """The model's ``GenerationConfig``; not to be modified."""


@runtime_checkable
class OffersFeeder(Protocol):
    """
    What a generation can run on in place of one decoder: several that are combined, or one that is guided.

    It needs no ``forward``, since its logits depend on more than the ids of a row.
    """

    @property
    def shape(self) -> DecoderShape:
        """The rows, positions, vocabulary and columns that a generation has."""

    @property
    def decoders(self) -> tuple[Decoder, ...]:
        """The decoders that it feeds; each takes part in every forward."""

    def feeder(self) -> TokenFeeder:
        """What a generation feeds in place of a decoder's slots; always the same object."""


AnyDecoder: TypeAlias = Decoder | OffersFeeder
"""What a generation runs on."""


def decoders_of(decoder: AnyDecoder) -> tuple[Decoder, ...]:
    """The decoders that *decoder* stands for: itself, or those that its feeder feeds."""
    return decoder.decoders if isinstance(decoder, OffersFeeder) else (decoder,)


@runtime_checkable
class ReadsPrompts(Protocol):
    """A feeder, which may feed what depends on where a row's prompt ends, such as a negative prompt."""

    reads_prompts: bool
    """Whether it does: then its logits do not follow from a row's tokens alone."""


def reads_prompts(feeder: object) -> bool:
    """Whether *feeder* is one that :attr:`~ReadsPrompts.reads_prompts`; False if it does not say so."""
    return isinstance(feeder, ReadsPrompts) and feeder.reads_prompts


@runtime_checkable
class CombinesByColumn(Protocol):
    """A combination of several decoders' logits that declares what a column of it depends on."""

    by_column: bool
    """Whether a column's result is the same bits whatever other rows and columns there are."""


@runtime_checkable
class CopiesRows(Protocol):
    """A decoder that can copy the cache of one row to another, so that a shared prefix is fed once."""

    @property
    def copies_rows(self) -> bool:
        """Whether it can."""
        ...

    def copy_rows(self, source: Tensor, upto: int) -> None:
        """
        Replace leading slots of each row by those of another.

        Args:
            source: The row that each row becomes a copy of, ``[batch]`` int64 on the host; its own number
                leaves it as it is. All rows are read before one is written, so a permutation is right.

            upto: The number of leading slots to copy, at most ``max_length``. What lies beyond is undefined
                in rows that are written.

        Raises:
            ValueError: A wrong shape, row or number. Nothing has been written.
        """
        ...


def copies_rows(decoder: object) -> bool:
    """Whether *decoder* is known to copy rows."""
    return isinstance(decoder, CopiesRows) and decoder.copies_rows


@runtime_checkable
class FeedsRows(Protocol):
    """A decoder with forwards of one row: a prompt is fed without computing the rows beside it."""

    @property
    def row_widths(self) -> tuple[int, ...]:
        """Columns of these forwards, ascending, of ``shape.widths``; empty if there are none."""
        ...

    def forward_row(self, ids: Tensor, cache_pos: Tensor, row: int) -> Tensor:
        """
        Write *ids* into the cache of one row, as :meth:`~..protocols.Decoder.forward` does.

        Args:
            ids: Tokens to feed, ``[1, width]`` int64, *width* one of :attr:`row_widths`; -1 is padding.

            cache_pos: Position of the first column, ``[1]`` int64.

            row: The row; the others are left as they are.

        Returns:
            Logits ``[1, width, vocab]`` or, if *width* exceeds ``shape.scored_width``, ``[1, 1, vocab]``, as
            of a forward.

        Raises:
            ValueError: A wrong width, row, id or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        ...


def row_widths(decoder: object) -> tuple[int, ...]:
    """Columns of the forwards of one row of *decoder*; empty if there are none."""
    return tuple(decoder.row_widths) if isinstance(decoder, FeedsRows) else ()


class QueuedSample(Protocol):
    """The sample of a forward of one column, which the device may still be computing."""

    def read(self) -> Tensor:
        """
        Wait for that forward, not for later ones.

        Returns:
            Ids ``[batch, 1]`` int64 on the host, -1 where no token is possible; undefined in idle rows.
        """
        ...


@runtime_checkable
class QueuesForwards(Protocol):
    """
    A decoder that samples on the device and can run one forward ahead of the host.

    The ids that a forward samples stay on the device and are fed to the next one, which is queued before
    the host reads them. If the host then stops a row, its slot at the end is overwritten by position like
    any other, so nothing has to be undone.
    """

    async_mode: bool
    """Whether a generation queues forwards. The chain must then not read the ids of the history."""

    def queue_and_sample(
        self, ids: Tensor | QueuedSample, cache_pos: Tensor, history: History, rows: Tensor
    ) -> QueuedSample:
        """
        Queue a forward of one column and the sample after it; do not wait for either.

        Forwards run in the order of the calls, those of :meth:`~..protocols.Decoder.forward` included.

        Args:
            ids: Tokens ``[batch, 1]`` on the host, or an earlier sample of this decoder, read or not. A
                token of -1 feeds nothing.

            cache_pos: As in a forward.

            history: The tokens up to the column, ``[batch, 1]``, as in ``forward_and_sample``; its ids lack
                those of a sample that has not been read.

            rows: ``[batch]`` bool; the others are idle.
        """
        ...


@runtime_checkable
class AdvisesWidth(Protocol):
    """An adapter of another toolkit's decoder, which can name that toolkit's setting for a width."""

    def advise_width(self, columns: int) -> str:
        """How to make it score so many columns, as a sentence for an error message."""


@runtime_checkable
class BitExact(Protocol):
    """A decoder that says whether rounding depends on the shape of its forwards."""

    @property
    def bit_exact(self) -> bool:
        """
        Whether it is proved that a column's logits are the same bits at every width, batch and span.

        Then speculation, batches and reused prefixes give the tokens of plain decoding.
        """
        ...


def is_bit_exact(decoder: object) -> bool:
    """Whether *decoder* is :attr:`~BitExact.bit_exact`; False if it does not say so."""
    return isinstance(decoder, BitExact) and decoder.bit_exact


@runtime_checkable
class SkipsPadding(Protocol):
    """A decoder that says whether columns of padding take time."""

    @property
    def skips_padding(self) -> bool:
        """Whether a forward takes less time the more of its columns are padding."""
        ...


def does_skip_padding(decoder: object) -> bool:
    """Whether *decoder* :attr:`~SkipsPadding.skips_padding`; False if it does not say so."""
    return isinstance(decoder, SkipsPadding) and decoder.skips_padding


@runtime_checkable
class RunsInLockstep(Protocol):
    """A decoder that may be divided over processes, each of which makes the same forwards."""

    @property
    def in_lockstep(self) -> bool:
        """Whether it is: then no part may decide by time, which differs between processes."""
        ...


def runs_in_lockstep(decoder: object) -> bool:
    """Whether *decoder* is :attr:`~RunsInLockstep.in_lockstep`; False if it does not say so."""
    return isinstance(decoder, RunsInLockstep) and decoder.in_lockstep


def tree_widths(decoder: object) -> tuple[int, ...]:
    """Columns of the tree forwards of *decoder*; empty if there are none."""
    return tuple(decoder.tree_widths) if isinstance(decoder, ScoresTrees) else ()


@runtime_checkable
class Saves(Protocol):
    """A decoder that can be saved, with a tokenizer."""

    def save(self, folder: str | PathLike[str], tokenizer: Any = None) -> None:
        """Write everything that loading it needs into *folder*."""
