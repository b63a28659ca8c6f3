"""The contract checks of a processor."""

import math

import attrs
import torch
from torch import Tensor

from ..optional_protocols import KeepsArgmax, Local, RowIndependent, ShiftInvariant
from ..protocols import Processor
from ..validation import as_real
from .assertions import require
from .trial_window import TrialWindow, check_sizes, copy_of, require_history_unchanged


def check_processor(
    processor: Processor,
    *,
    vocab_size: int = 16,
    batch_size: int = 3,
    width: int = 4,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> None:
    """
    Check *processor* against the contract of :data:`~decodekit.decoding.protocols.Processor`.

    Random windows are processed whole, again, column by column in another order, with other ids beyond the
    lengths, with a path for each column, beside other rows, in a smaller batch, and with half of the tokens
    forbidden: each column must get the same logits, and neither the logits nor the history that were fed may
    change. What the processor declares (``row_independent``, ``keeps_argmax``, ``local``,
    ``shift_invariant``) must hold.

    Args:
        processor: A processor or a chain.

        vocab_size: Logits per column, as the processor expects.

        batch_size: Rows; the number of values of a processor with one value per row. A smaller batch that
            the processor refuses with ``ValueError`` is left out, unless it is ``row_independent``.

        width: Columns of a window.

        tolerance: The largest difference allowed, relative to the largest finite logit.

        seed: Seed of the random logits and tokens.

    Raises:
        AssertionError: A rule is broken; the message says what was fed, what came, and the rule.

        TypeError: *processor* is not callable.

        ValueError: An option is out of range.
    """
    if not callable(processor) or isinstance(processor, type):
        raise TypeError(f"'processor' must be callable as processor(logits, history): got {processor!r}")
    check_sizes(seed, vocab_size=vocab_size, batch_size=batch_size, width=width)
    if not isinstance(as_real(tolerance), float) or not 0 <= as_real(tolerance) < math.inf:
        raise ValueError(f"'tolerance' must be a number >= 0, and finite: got {tolerance!r}")
    random = torch.Generator().manual_seed(seed)
    trial = _Trial(processor, tolerance)
    for least in (1, 6):
        window = TrialWindow.random(batch_size, width, vocab_size, random, least)
        other = TrialWindow.random(batch_size, width, vocab_size, random, least)
        trial.try_window(window, other)
    trial.try_window(window.forbidding(random), other.forbidding(random))


@attrs.frozen(eq=False)
class _Trial:
    processor: Processor
    tolerance: float

    def call(self, window: TrialWindow) -> Tensor:
        """Processed logits of *window*; that it was left alone is checked."""
        logits, history = window.logits.clone(), copy_of(window.history)
        fed = window.fed()
        processed = self.processor(logits, history)
        rule = f"a processor must return logits of its input's shape and dtype: {fed} {logits.dtype}"
        require(isinstance(processed, Tensor), f"{rule}; came: {processed!r}")
        came = f"{list(processed.shape)} {processed.dtype}"
        require(
            processed.shape == window.logits.shape and processed.dtype == window.logits.dtype,
            f"{rule}; came: {came}",
        )
        changed = (logits != window.logits).nonzero()
        if len(changed):
            row, column, token = changed[0].tolist()
            require(
                False,
                f"a processor must not write into the logits that it is given: "
                f"{window.fed(row, column)}; came: the logit of token {token} was "
                f"{float(window.logits[row, column, token]):.6g} and is "
                f"now {float(logits[row, column, token]):.6g}",
            )
        require_history_unchanged(history, window.history, "a processor", fed)
        return processed

    def try_window(self, window: TrialWindow, other: TrialWindow) -> None:
        """Check every rule on *window*, with the rows of *other* as other neighbours and calls."""
        result = self.call(window)
        expected = result.clone()
        for row, column in ((expected == math.inf) | expected.isnan()).any(dim=-1).nonzero().tolist():
            came = expected[row, column].tolist()
            require(
                False,
                "a processor forbids tokens with -inf and makes no logit NaN or +inf: "
                f"{window.fed(row, column)}; came: {came}",
            )
        self.call(other)
        rule = "a processor must not write into the logits that it returned before"
        self.compare(rule, window, result, expected)
        rule = "a processor must be a function of its input, and remember nothing between calls"
        self.compare(rule, window, self.call(window), expected)
        self.columns(window, expected)
        rule = "a column must be processed alike if every column has a path of its own, as in a draft tree"
        self.compare(rule, window, self.call(window.branched()), expected)
        self.rows(window, other, expected)
        self.declared(window, expected)

    def columns(self, window: TrialWindow, expected: Tensor) -> None:
        """Each column alone, the last first, with other ids beyond its length."""
        width = window.logits.shape[1]
        for column in reversed(range(width)):
            rule = (
                f"a column must be processed alike alone and as one of {width} columns: it depends on the "
                "tokens before it only, and reads no ids beyond 'length'"
            )
            alone = self.call(window.column(column, garbage=(-1, 0)[column % 2]))
            self.compare(rule, window, alone, expected[:, column : column + 1], first=column)

    def rows(self, window: TrialWindow, other: TrialWindow, expected: Tensor) -> None:
        """Each row beside others, the first rows alone, and rows in another order if that is declared."""
        batch = len(window.logits)
        for row in range(batch):
            rule = f"row {row} must not depend on its neighbours"
            beside = self.call(window.beside(row, other))
            self.compare(rule, window, beside[row : row + 1], expected[row : row + 1], row=row)
        anywhere = isinstance(self.processor, RowIndependent) and self.processor.row_independent
        choices = [list(range(count)) for count in range(1, batch)]
        if anywhere:
            choices += [[row] for row in range(batch)] + [list(reversed(range(batch)))]
        for rows in choices:
            try:
                some = self.call(window.rows(rows))
            except ValueError as error:
                # One value per row: another batch is rightly refused.
                require(not anywhere, f"'row_independent' is declared, so any batch must be taken: {error}")
                continue
            rule = (
                f"a row must be processed alike in a batch of {batch} and in one of {len(rows)}, rows {rows}"
            )
            for position, row in enumerate(rows):
                self.compare(rule, window, some[position : position + 1], expected[row : row + 1], row=row)

    def declared(self, window: TrialWindow, expected: Tensor) -> None:
        """What the processor declares."""
        processor = self.processor
        if isinstance(processor, KeepsArgmax) and processor.keeps_argmax:
            top = window.logits.argmax(dim=-1, keepdim=True)
            lost = (expected.gather(-1, top) < expected.amax(dim=-1, keepdim=True))[..., 0].nonzero()
            if len(lost):
                row, column = lost[0].tolist()
                require(
                    False,
                    "'keeps_argmax' is declared, so the largest logit must stay the largest: "
                    f"{window.fed(row, column)}, largest token {int(top[row, column])}; "
                    f"came: token {int(expected[row, column].argmax())}",
                )
        if isinstance(processor, Local) and processor.local:
            self.survivors(window)
        if isinstance(processor, ShiftInvariant) and processor.shift_invariant:
            shifted = self.call(TrialWindow(window.logits + 2.0, window.history))
            rule = "'shift_invariant' is declared, so a constant must not change the distribution"
            # The logits' own rounding moves with the constant.
            self.compare(rule, window, _log_probabilities(shifted), _log_probabilities(expected), least=1e-4)

    def survivors(self, window: TrialWindow) -> None:
        """Every other token alone, as if a truncation had left them, with other ids in the history."""
        history = window.history
        others = torch.where(history.ids >= 0, 0, history.ids)
        some = window.logits[..., ::2]
        alone = self.call(TrialWindow(some.clone(), attrs.evolve(history, ids=others)))
        left = torch.full_like(window.logits, -torch.inf)
        left[..., ::2] = some
        among = TrialWindow(left, history)
        rule = (
            "'local' is declared, so the tokens that a truncation leaves, every other one here, must be "
            "processed alike alone and among all, whatever the ids before them are"
        )
        self.compare(rule, among, alone, self.call(among)[..., ::2])

    def compare(
        self,
        rule: str,
        window: TrialWindow,
        came: Tensor,
        expected: Tensor,
        *,
        row: int = 0,
        first: int = 0,
        least: float = 0.0,
    ) -> None:
        """Require equal logits; *row* and *first* are the first row and column of *came* in *window*."""
        finite = expected[expected.isfinite()]
        largest = float(finite.abs().max()) if len(finite) else 0.0
        limit = max(self.tolerance, least) * max(1.0, largest)
        # -inf - -inf is NaN, and equal.
        off = torch.where(came == expected, 0.0, (came - expected).abs())
        wrong = (~(off <= limit)).nonzero()
        if len(wrong):
            r, c, token = wrong[0].tolist()
            raise AssertionError(
                f"{rule}: {window.fed(row + r, first + c)}; came: {float(came[r, c, token]):.6g} for token "
                f"{token}, and before {float(expected[r, c, token]):.6g} (allowed: {limit:.3g})"
            )


def _log_probabilities(logits: Tensor) -> Tensor:
    """Their logarithms; ``-inf`` throughout a column that has no token left."""
    return logits.log_softmax(dim=-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
