"""Asking a drafter for the evidence for its drafts."""

from collections.abc import Sequence
from typing import Any, cast

import attrs
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import ForeseesTokens, GivesEvidence
from ..protocols import Drafter


@attrs.frozen(eq=False)
class Outlook:
    """What a drafter says of drafts for some rows, before it makes any."""

    evidence: tuple[int, ...]
    """The evidence for each row's draft."""

    first_tokens: tuple[int, ...] | None
    """The token that each draft begins with, -1 for none; None if the drafter does not tell it."""


def outlooks(
    drafter: Drafter, foresees: bool, rows: Sequence[Sequence[int]], most: Sequence[int], now: History
) -> list[Outlook]:
    """
    Ask a drafter with evidence once, for the rows of several requests.

    Args:
        drafter: Theirs.

        foresees: Whether it is one that :class:`ForeseesTokens`.

        rows: Of each request, in the table.

        most: The longest draft of each request.

        now: The table's tokens so far, width 1.

    Raises:
        ValueError: The drafter does not answer for each row.
    """
    budget = [0] * len(now.length)
    for own, longest in zip(rows, most, strict=True):
        for row in own:
            budget[row] = longest
    # A copy, so that a drafter cannot change the loop's lengths.
    shown = now.at(now.length.clone())
    first_tokens: list[int] | None = None
    if foresees:
        both = cast(ForeseesTokens, drafter).foresee(shown, torch.tensor(budget))
        evidence, first_tokens = _for_rows(both[0], len(budget)), _for_rows(both[1], len(budget))
    else:
        evidence = _for_rows(cast(GivesEvidence, drafter).evidence(shown, torch.tensor(budget)), len(budget))
    return [
        Outlook(
            tuple(evidence[row] for row in own),
            None if first_tokens is None else tuple(first_tokens[row] for row in own),
        )
        for own in rows
    ]


def _for_rows(answer: Any, rows: int) -> list[int]:
    """The numbers of a drafter's *answer*, one for each row."""
    if not isinstance(answer, Tensor) or answer.shape != (rows,) or answer.dtype != torch.int64:
        came = f"{list(answer.shape)} of {answer.dtype}" if isinstance(answer, Tensor) else repr(answer)
        raise ValueError(
            f"a drafter must give evidence and first tokens as int64 tensors [{rows}]: got {came}"
        )
    return cast(list[int], answer.tolist())
