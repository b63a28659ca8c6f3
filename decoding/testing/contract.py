"""The contract checks of a decoder."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from ..forward_checks import require_decoder
from ..optional_protocols import CopiesRows, FeedsRows
from ..protocols import Decoder, ScoresTrees
from ..validation import as_real, is_iterable, is_whole
from .assertions import require
from .chain_check import ChainTrial
from .rows_check import check_copies, check_row_forwards
from .tree_check import TreeTrial


def check_decoder(
    decoder: Decoder, *, tolerance: float = 1e-4, seed: int = 0, overflowing: Sequence[int] = ()
) -> None:
    """
    Check *decoder* against the contract of :class:`~decodekit.decoding.protocols.Decoder`.

    Random tokens are fed one by one, then again in every width, in ragged rows, beside padding and idle rows,
    over slots that held other tokens, and up to the last position: the logits must agree up to
    *tolerance*. A token after a wide forward must see what that wrote. Rows that exchange their tokens must
    exchange their logits. A rewind must leave the later slots: a cache that is cropped on a rewind is
    refused. If the decoder scores trees, each column must score as its path does; forwards of one row and
    copies of rows must agree with the others. Finally, invalid calls must be refused.

    A batch of one has no rows that could be mixed up: that rows are independent, and that each is written at
    a position of its own, is tested with ``batch_size`` of 2 or more only.

    Args:
        decoder: Any decoder. Its cache is overwritten.

        tolerance: The largest difference of logits allowed, relative to the largest logit.

        seed: Seed of the random tokens.

        overflowing: Tokens on which the model overflows, such as one whose embedding is NaN. Columns that
            see one must score NaN, others must not be affected.

    Raises:
        AssertionError: A rule is broken; the message says what was fed, what came, and the rule.

        TypeError: *decoder* is none, or an option has another type.

        ValueError: An option is out of range.
    """
    require_decoder(decoder)
    _check_options(tolerance, seed, overflowing, decoder.shape.vocab_size)
    shape = decoder.shape
    require(shape.widths[-1] <= shape.max_length, f"widths must be <= max_length: {shape.widths}")
    random = np.random.default_rng(seed)
    usable = np.setdiff1d(np.arange(shape.vocab_size), overflowing)
    chosen = random.choice(len(usable), size=(shape.batch_size, shape.max_length))
    tokens, others = (torch.from_numpy(usable[(chosen + n) % len(usable)]) for n in (0, 1))
    trial = ChainTrial(decoder, tokens, others, tolerance)
    trial.step_by_step()
    trial.beyond_a_rewind()
    for width in shape.widths:
        trial.one_wide_forward(width)
        trial.over_leavings(width)
        trial.under_padding(width)
        trial.padding_over_slots(width)
        for token in overflowing:
            trial.beside_overflow(width, token)
    trial.rows_exchanged()
    for width in shape.widths:
        trial.after_a_wide_forward(width)
    trial.beside_idle_rows()
    trial.refusals()
    if isinstance(decoder, ScoresTrees) and decoder.tree_widths:
        trees = TreeTrial(trial, decoder, random)
        for width in trees.decoder.tree_widths:
            trees.one_tree(width)
        trees.refusals()
    if isinstance(decoder, FeedsRows) and decoder.row_widths:
        check_row_forwards(trial, decoder)
    if isinstance(decoder, CopiesRows) and decoder.copies_rows:
        check_copies(trial, decoder)


def _check_options(tolerance: float, seed: int, overflowing: Sequence[int], vocab: int) -> None:
    if not isinstance(as_real(tolerance), float) or not 0 <= as_real(tolerance) < math.inf:
        raise ValueError(f"'tolerance' must be a number >= 0, and finite: got {tolerance!r}")
    if not is_whole(seed) or seed < 0:
        raise ValueError(f"'seed' must be a whole number >= 0: got {seed!r}")
    rule = f"'overflowing' must be token ids, 0 to {vocab - 1}, and leave others"
    if not is_iterable(overflowing) or not all(map(is_whole, overflowing)):
        raise TypeError(f"{rule}: got {overflowing!r}")
    if any(not 0 <= token < vocab for token in overflowing) or len(set(overflowing)) >= vocab:
        raise ValueError(f"{rule}: got {overflowing!r}")
