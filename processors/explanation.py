"""What each stage of a chain did to a distribution."""

import math
from typing import Protocol

import attrs
import torch
from torch import Tensor

from ..decoding.history import History
from ..decoding.optional_protocols import stages_of
from ..decoding.protocols import Processor
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


class Decodes(Protocol):
    """What is asked of a tokenizer."""

    def decode(self, token_ids: list[int], /) -> str:
        """The text of ids."""
        ...


@attrs.frozen
class Change:
    """What a stage did to one token."""

    token: int

    text: str | None
    """None without a tokenizer."""

    before: float
    """Its probability before the stage; of a moved token, among those that the stage left."""

    after: float
    """Its probability after the stage."""

    def __str__(self) -> str:
        name = str(self.token) if self.text is None else f"{self.token} {self.text!r}"
        return f"{name} {self.before:.1%}" + (f" → {self.after:.1%}" if self.after > 0 else "")


@attrs.frozen
class StageEffect:
    """
    What one processor did in one column.

    Figures of a distribution are NaN where there is none: no token left, or NaN or +inf among
    the logits.
    """

    name: str
    """The processor's ``repr``."""

    left: int
    """Tokens that may still be chosen."""

    removed: int
    """Tokens that it forbade."""

    examples: tuple[Change, ...]
    """The likeliest of them."""

    moved: int
    """
    Tokens left whose logit it changed, against each other: a shift of them all moves none, and
    neither does what remains growing into the place of what was removed.
    """

    movements: tuple[Change, ...]
    """The largest such changes of probability."""

    mass_kept: float
    """The probability, before it, of what it left."""

    entropy_before: float
    """In nats."""

    entropy_after: float
    """In nats."""

    trouble: str
    """Why there is no distribution after it; empty where there is one."""

    def cells(self) -> list[str]:
        """Its line in the table."""
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
    """One column of one row, stage by stage."""

    row: int
    column: int

    entropy: float
    """Of the logits as they came, in nats; NaN where they are no distribution."""

    trouble: str
    """Why the logits as they came are no distribution; empty where they are one."""

    stages: tuple[StageEffect, ...]

    top_tokens: tuple[Change, ...]
    """The likeliest tokens in the end; ``before`` is their probability as the logits came."""

    @property
    def emptied_by(self) -> str | None:
        """The first part that left no token: a stage's name, ``"the decoder"``, or None."""
        if self.trouble == _EMPTY:
            return "the decoder"
        return next((stage.name for stage in self.stages if stage.trouble == _EMPTY), None)

    def table(self) -> DisplayTable:
        """A line a stage."""
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
    """What a chain did, one table a column; ``print`` it, or let a notebook show it."""

    columns: tuple[Column, ...]
    """Row by row, each row's columns in their order."""

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
    Run *chain* and keep account of what each stage removes and moves.

    The stages run as they always do; the figures are computed in float64. Logits that are no
    distribution are no error: where NaN, +inf or nothing at all came in or out, it is said.

    Args:
        chain: A chain, one processor, or None.

        logits: ``[batch, width, vocab]``, not modified, such as ``Generator.logits`` gives.

        history: The tokens before each column, from there as well.

        tokenizer: Anything with ``decode([id])``, to show tokens as text.

        examples: How many tokens are named a stage.

    Raises:
        TypeError: *logits* or *history* is something else.
    """
    if not isinstance(logits, Tensor) or logits.dim() != 3 or not isinstance(history, History):
        given = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(
            "explain takes logits [batch, width, vocab] and a History, as Generator.logits gives them: "
            f"got {given} and a {type(history).__name__}"
        )
    stages = stages_of(chain)
    states = [logits]
    for stage in stages:
        # A copy: a processor that writes into what it is given is to be seen doing so.
        states.append(stage(states[-1].clone(), history))
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
        """The tokens where *size* is largest and above 0; of equals, the lower id first."""
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
    # Compared with what was left, not with all: growing into the place of others is no movement.
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
    """Where a logit changed, unless all that stayed finite changed by the same."""
    stayed = before.isfinite() & after.isfinite()
    by = (after - before)[stayed]
    # Up to the rounding of float32 logits, in which a stage runs.
    shifted = by.numel() > 0 and bool((by.max() - by.min()) <= 1e-6 * after[stayed].abs().max())
    return (before != after) & ~(stayed & shifted)


def _probabilities(logits: Tensor) -> Tensor:
    """``[vocab]``; NaN throughout where the logits are no distribution."""
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
