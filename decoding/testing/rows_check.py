"""Contract checks of decoders that feed or copy single rows."""

from functools import partial

import torch

from ..optional_protocols import CopiesRows, FeedsRows
from .assertions import require, require_refusal, unknown_width
from .chain_check import ChainTrial


def check_row_forwards(trial: ChainTrial, decoder: FeedsRows) -> None:
    """
    Check that a forward of one row scores as one of all rows does, and leaves the others as they are.

    Raises:
        AssertionError: A rule is broken.
    """
    shape = trial.decoder.shape
    trial.step_by_step()
    for width in decoder.row_widths:
        require(width in shape.widths, f"row_widths must be of the widths {shape.widths}: {width}")
        columns = width if width <= shape.scored_width else 1
        for row in range(shape.batch_size):
            end = shape.max_length
            ids = trial.tokens[row : row + 1, end - width : end]
            logits = decoder.forward_row(ids, torch.tensor([end - width]), row)
            expected = (1, columns, shape.vocab_size)
            require(
                tuple(logits.shape) == expected,
                f"logits of a row must have the shape {expected}: {tuple(logits.shape)}",
            )
            rule = f"a forward of one row, of width {width}, scores as one of all rows"
            for column in range(columns):
                position = end - columns + column
                trial.compare(rule, row, position, logits[0, column])
            # Other tokens, and then its own again: the other rows must keep theirs.
            decoder.forward_row((ids + 1) % shape.vocab_size, torch.tensor([end - width]), row)
            _feed_others(trial, row, end - width)
            decoder.forward_row(ids, torch.tensor([end - width]), row)
            trial.step(shape.max_length - 1)
            _beside_padding(trial, decoder, width, row)
    _row_refusals(trial, decoder)


def _feed_others(trial: ChainTrial, row: int, start: int) -> None:
    """Other tokens from *start* on in *row*, one by one: a forward that writes nothing leaves them."""
    rows, length = trial.tokens.shape
    alone = torch.arange(rows) == row
    for position in range(start, length):
        trial.narrow(torch.where(alone, trial.others[:, position], -1), torch.where(alone, position, 0))


def _beside_padding(trial: ChainTrial, decoder: FeedsRows, width: int, row: int) -> None:
    """Fewer tokens than columns: the padding stands over slots in use, and leaves them."""
    shape = trial.decoder.shape
    count, start = max(1, width // 2), shape.max_length - width
    indent = width - count if width > shape.scored_width else 0
    ids = torch.full((1, width), -1)
    ids[0, indent : indent + count] = trial.tokens[row, start + indent : start + indent + count]
    logits = decoder.forward_row(ids, torch.tensor([start]), row)
    rule = f"padding beside the tokens of one row, of width {width}, leaves the slots that it stands over"
    trial.compare(rule, row, start + indent + count - 1, logits[0, -1 if indent else count - 1])
    trial.step(shape.max_length - 1)


def check_copies(trial: ChainTrial, decoder: CopiesRows) -> None:
    """
    Check that a copied row continues as its source does, a permutation is done at once, and others are left.

    Raises:
        AssertionError: A rule is broken.
    """
    trial.step_by_step()
    rows, length = trial.tokens.shape
    _one_copy(trial, decoder)
    source, upto = torch.arange(rows).roll(1), length // 2
    decoder.copy_rows(source, upto)
    ids = torch.full((rows, trial.decoder.shape.widths[0]), -1)
    ids[:, 0] = trial.tokens[source, upto]
    logits = trial.forward(ids, [upto] * rows)[:, 0]
    for row, one in enumerate(source.tolist()):
        rule = f"a copy of row {one} scores as that row"
        trial.compare_with(trial.expected[upto][one], rule, row, upto, logits[row])
    refused = partial(require_refusal, error=ValueError)
    refused("a source that is no row", call=partial(decoder.copy_rows, source + rows, upto))
    refused("slots beyond the last", call=partial(decoder.copy_rows, source, length + 1))


def _one_copy(trial: ChainTrial, decoder: CopiesRows) -> None:
    """One row becomes a copy of the next; the others are named as their own sources."""
    rows, length = trial.tokens.shape
    decoder.copy_rows(torch.tensor([1 % rows, *range(1, rows)]), length // 2)
    last = trial.tokens[:, length - 1]
    logits = trial.narrow(last, torch.full((rows,), length - 1))
    for row in range(1 % rows, rows):
        trial.compare("a row that is its own source stays as it is", row, length - 1, logits[row])
    trial.step_by_step()


def _row_refusals(trial: ChainTrial, decoder: FeedsRows) -> None:
    shape, width = trial.decoder.shape, decoder.row_widths[0]
    ids, start = torch.zeros(1, width, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    unknown = torch.zeros(1, unknown_width(decoder.row_widths), dtype=torch.int64)
    refused = partial(require_refusal, error=ValueError)
    for name, call in {
        "a row of another width": partial(decoder.forward_row, unknown, start, 0),
        "a row that is none": partial(decoder.forward_row, ids, start, shape.batch_size),
        "an id beyond the vocabulary": partial(decoder.forward_row, ids + shape.vocab_size, start, 0),
        "a position beyond the last": partial(decoder.forward_row, ids, start + shape.max_length, 0),
    }.items():
        refused(name, call=call)
