"""Effect of each stage of a chain on the distribution."""

import math
from typing import Protocol, runtime_checkable

import attrs
import torch
from torch import Tensor

from ..decoding.history import History
from ..decoding.optional_protocols import stages_of
from ..decoding.protocols import Processor
from ..decoding.sampling.stages import check_shape
from ..decoding.validation import is_whole
from .chain import Chain
from .display_table import DisplayTable

_NAME_WIDTH = 48

_HEADER = (
    "stage",
    "left",
    "mass kept",
    "entropy",
    "removed",
    "likeliest of them",
    "moved",
    "farthest of them",
)
_NUMERIC = frozenset({1, 2, 3, 4, 6})

_EMPTY = "no token left"


@runtime_checkable
class Decodes(Protocol):
    """The part of a tokenizer used here."""

    def decode(self, token_ids: list[int], /) -> str:
        """Decode token ids to text."""
        ...


@attrs.frozen
class Change:
    """Effect of a stage on one token."""

    token: int

    text: str | None
    """None without a tokenizer."""

    before: float
    """Probability before the stage; for moved tokens renormalised over the kept tokens."""

    after: float
    """Probability after the stage."""

    def __str__(self) -> str:
        name = str(self.token) if self.text is None else f"{self.token} {self.text!r}"
        return f"{name} {self.before:.1%}" + (f" → {self.after:.1%}" if self.after > 0 else "")


@attrs.frozen
class StageEffect:
    """
    Effect of one processor on one column.

    Figures are NaN without a valid distribution: no token left, or NaN or +inf among the logits.
    """

    name: str
    """The processor's ``repr``."""

    left: int
    """Number of tokens not masked after the stage."""

    removed: int
    """Number of tokens masked by the stage."""

    examples: tuple[Change, ...]
    """The most likely removed tokens."""

    moved: int
    """
    Number of kept tokens whose logit changed relative to the others: neither a common shift nor
    renormalisation after a removal counts.
    """

    movements: tuple[Change, ...]
    """The moved tokens with the largest changes of probability."""

    mass_kept: float
    """Probability mass of the kept tokens before the stage."""

    entropy_before: float
    """In nats."""

    entropy_after: float
    """In nats."""

    trouble: str
    """Why there is no valid distribution after the stage; empty if there is one."""

    def cells(self) -> list[str]:
        """Cells of the stage's table row."""
        return [
            self.name if len(self.name) <= _NAME_WIDTH else self.name[: _NAME_WIDTH - 3] + "...",
            str(self.left),
            "-" if math.isnan(self.mass_kept) else f"{self.mass_kept:.2%}",
            self.trouble or f"{self.entropy_after:.3f}",
            str(self.removed),
            _listed(self.examples, self.removed),
            str(self.moved),
            _listed(self.movements, self.moved),
        ]


@attrs.frozen
class Column:
    """Explanation of one column of one row."""

    row: int
    column: int

    entropy: float
    """Entropy of the input logits in nats; NaN without a valid distribution."""

    trouble: str
    """Why the input logits are no valid distribution; empty if they are."""

    stages: tuple[StageEffect, ...]

    top_tokens: tuple[Change, ...]
    """Most likely tokens after the chain; ``before`` is their probability in the input logits."""

    @property
    def emptied_by(self) -> str | None:
        """The first part without a token left: a stage's name, ``"the decoder"``, or None."""
        if self.trouble == _EMPTY:
            return "the decoder"
        return next((stage.name for stage in self.stages if stage.trouble == _EMPTY), None)

    def table(self) -> DisplayTable:
        """Table with one line per stage."""
        came = self.trouble or f"entropy {self.entropy:.3f} nats"
        end = ", ".join(map(str, self.top_tokens)) or "no distribution"
        return DisplayTable(
            title=f"row {self.row}, column {self.column}: {came}",
            header=_HEADER,
            rows=[stage.cells() for stage in self.stages],
            footer=f"no token is left after {self.emptied_by}" if self.emptied_by else f"in the end: {end}",
            numeric=_NUMERIC,
        )


@attrs.frozen
class Explanation:
    """Explanation of a chain, one table per column; printable and rendered by notebooks."""

    columns: tuple[Column, ...]
    """In row-major order."""

    def __str__(self) -> str:
        return "\n\n".join(column.table().text() for column in self.columns)

    def _repr_html_(self) -> str:
        return "".join(column.table().html() for column in self.columns)


def explain(
    chain: Processor | None,
    logits: Tensor,
    history: History,
    tokenizer: Decodes | None = None,
    examples: int = 3,
) -> Explanation:
    """
    Run *chain* and report what each stage removes and moves.

    Stages run unchanged; the figures are computed in float64. Invalid distributions (NaN, +inf, no
    token left) are reported, not raised.

    Args:
        chain: A chain, one processor, or None.

        logits: ``[batch, width, vocab]``, not modified, for example from ``Generator.logits``.

        history: The tokens before each column, from the same source.

        tokenizer: Anything with ``decode([id])``, to show tokens as text.

        examples: Number of tokens listed per stage.

    Raises:
        TypeError: An argument has another type, or the logits another shape.

        ValueError: *history* is of other columns, or *examples* is negative.
    """
    if not isinstance(logits, Tensor) or logits.dim() != 3 or not isinstance(history, History):
        given = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(
            "explain takes logits [batch, width, vocab] and a History, as Generator.logits gives them: "
            f"got {given} and a {type(history).__name__}"
        )
    if not logits.is_floating_point():
        raise TypeError(f"'logits' must be real numbers: got a tensor of {logits.dtype}")
    if history.length.shape != logits.shape[:2]:
        raise ValueError(
            "'history' must have a length for each row and column of the logits, "
            f"{list(logits.shape[:2])}: got {list(history.length.shape)}"
        )
    if not is_whole(examples) or examples < 0:
        raise ValueError(f"'examples' must be a whole number >= 0: got {examples!r}")
    # Bytes have a decode() too.
    if tokenizer is not None and (isinstance(tokenizer, bytes) or not isinstance(tokenizer, Decodes)):
        raise TypeError(f"'tokenizer' must have a method decode: got {tokenizer!r}")
    if chain is not None:
        Chain((chain,))  # refuses what is no processor
    stages = stages_of(chain)
    states = [logits]
    for stage in stages:
        # A copy, so that a processor that modifies its input does not corrupt the comparison.
        states.append(stage(states[-1].clone(), history))
        check_shape("chain", stage, states[-1], logits.shape)
    names = [repr(stage) for stage in stages]
    naming = _Naming(tokenizer, examples)
    return Explanation(
        tuple(
            _explain_column(row, column, [state[row, column].double() for state in states], names, naming)
            for row in range(logits.shape[0])
            for column in range(logits.shape[1])
        )
    )


@attrs.frozen
class _Naming:
    tokenizer: Decodes | None
    examples: int

    def largest(self, size: Tensor, before: Tensor, after: Tensor) -> tuple[Change, ...]:
        """Tokens with the largest positive *size*; ties by ascending id."""
        order = size.sort(descending=True, stable=True).indices[: self.examples].tolist()
        return tuple(
            Change(token, self._text(token), before[token].item(), after[token].item())
            for token in order
            if size[token] > 0
        )

    def _text(self, token: int) -> str | None:
        return None if self.tokenizer is None else self.tokenizer.decode([token])


def _explain_column(row: int, column: int, states: list[Tensor], names: list[str], naming: _Naming) -> Column:
    first, last = _probabilities(states[0]), _probabilities(states[-1])
    return Column(
        row=row,
        column=column,
        entropy=_entropy(first),
        trouble=_trouble(states[0]),
        stages=tuple(
            _explain_stage(name, before, after, naming)
            for name, before, after in zip(names, states[:-1], states[1:], strict=True)
        ),
        top_tokens=naming.largest(last, first, last),
    )


def _explain_stage(name: str, before: Tensor, after: Tensor, naming: _Naming) -> StageEffect:
    p, q = _probabilities(before), _probabilities(after)
    left = after > -torch.inf
    removed = (before > -torch.inf) & (after == -torch.inf)
    moved = left & _moves(before, after)
    mass = torch.where(left | p.isnan(), p, 0.0).sum()
    # Renormalised over the kept tokens, so that a mere removal moves nothing.
    share = torch.where(left, p / mass, 0.0)
    return StageEffect(
        name=name,
        left=int(left.sum()),
        removed=int(removed.sum()),
        examples=naming.largest(torch.where(removed, p, 0.0), p, torch.zeros_like(q)),
        moved=int(moved.sum()),
        movements=naming.largest(torch.where(moved, (q - share).abs(), 0.0), share, q),
        mass_kept=float(mass),
        entropy_before=_entropy(p),
        entropy_after=_entropy(q),
        trouble=_trouble(after),
    )


def _moves(before: Tensor, after: Tensor) -> Tensor:
    """Mask of changed logits; none if all finite ones changed by the same amount."""
    stayed = before.isfinite() & after.isfinite()
    by = (after - before)[stayed]
    # Up to float32 rounding.
    shifted = by.numel() > 0 and bool((by.max() - by.min()) <= 1e-6 * after[stayed].abs().max())
    return (before != after) & ~(stayed & shifted)


def _probabilities(logits: Tensor) -> Tensor:
    """Softmax ``[vocab]``; all NaN for invalid logits."""
    return torch.full_like(logits, torch.nan) if _trouble(logits) else logits.softmax(dim=-1)


def _trouble(logits: Tensor) -> str:
    kinds = (("NaN", int(logits.isnan().sum())), ("+inf", int((logits == torch.inf).sum())))
    if found := [f"{count} {kind}" for kind, count in kinds if count]:
        return " and ".join(found)
    return "" if bool((logits > -torch.inf).any()) else _EMPTY


def _entropy(p: Tensor) -> float:
    return float(torch.special.entr(p).sum())


def _listed(changes: tuple[Change, ...], count: int) -> str:
    listed = [str(change) for change in changes]
    return ", ".join([*listed, "..."] if listed and count > len(listed) else listed)
