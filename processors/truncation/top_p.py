"""Nucleus (top-p) filtering."""

import math
from typing import Any, ClassVar, cast

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import has_short_cuts
from ...decoding.sampling.candidates import Candidates
from ...decoding.sampling.few_tokens import Cell, Few
from ..chain import Composable
from ..numerics import nucleus_edge
from ..numerics.exact_sum import in_units, scratch_weights, whole_weights
from ..numerics.survivors import are_few, candidates, mask_below
from ..parameter import as_reals, is_scalar, one_integer, one_of, per_row, real

_NEAR = 1e-5
"""Margin well above the float32 error of a share of the total mass, some 3e-7."""


@has_short_cuts
@attrs.frozen(eq=False)
class TopP(Composable):
    """
    Keep the smallest set of most likely tokens whose probability mass reaches *p*.

    Computed from below, as in Hugging Face: the least likely tokens are dropped while their total
    is at most 1 - *p*. Typically 0.8-0.98; no-op at 1.

    Probabilities are integers in units of 2^-34 of the largest and summed exactly, so the set does
    not depend on the order, the batch or the size of the vocabulary.

    Holtzman et al., 2020, `The Curious Case of Neural Text Degeneration
    <https://arxiv.org/abs/1904.09751>`_, section 3.1.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # sorts

    p: float | Tensor = attrs.field(
        converter=as_reals, validator=real("in (0, 1]", lambda p: (p > 0) & (p <= 1))
    )
    """One for all rows, or ``[batch]``."""

    ties: str = attrs.field(default="last", validator=one_of("last", "first", "keep"))
    """
    Equally likely tokens at the edge of the nucleus: keep those with the highest ids (``"last"``:
    Hugging Face, vLLM, mlx-lm), those with the lowest (``"first"``: TensorRT-LLM), or all
    (``"keep"``: FlashInfer).
    """

    min_tokens: int = attrs.field(default=1, validator=one_integer(">= 1", lambda n: n >= 1))
    """Minimum number of tokens kept in every row."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the tail of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.p, 1.0):
            return logits
        # A stable sort, so that ties do not depend on the machine. Flipped, ties are dropped from
        # the highest id down.
        flipped = logits.flip(-1) if self.ties == "first" else logits
        ascending, order = flipped.sort(dim=-1, stable=True)
        weights = whole_weights(ascending)
        reached = weights.cumsum(dim=-1)
        spared = per_row("p", 1 - self.p, weights) * reached[..., -1:]
        tail = reached <= spared
        if isinstance(self.p, Tensor):
            # With p = 1 even tokens whose weight rounds to 0 stay.
            tail &= spared > 0
        tail[..., -self.min_tokens :] = False
        if self.ties == "keep":
            first = ascending.masked_fill(tail, torch.inf).amin(dim=-1, keepdim=True)
            return logits.masked_fill(logits < first, -torch.inf)
        tail = tail.scatter(-1, order, tail)
        return logits.masked_fill(tail.flip(-1) if self.ties == "first" else tail, -torch.inf)

    def narrow(self, logits: Tensor, history: History) -> Tensor | Candidates:
        """Same as a call, as candidates if few tokens are left; without a full sort."""
        if is_scalar(self.p, 1.0):
            return logits
        best = logits.amax(dim=-1, keepdim=True)
        if logits.dtype != torch.float32 or not best.isfinite().all():
            return self(logits, history)
        weights = scratch_weights(logits, best)
        total = weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
        spared = (per_row("p", 1 - self.p, total) * total).expand_as(total)
        vocab = logits.shape[-1]
        columns = logits.numpy(force=True).reshape(-1, vocab)
        edges = [
            nucleus_edge.edge(*column, self.min_tokens)
            for column in zip(
                columns,
                weights.numpy(force=True).reshape(-1, vocab),
                total.flatten().tolist(),
                spared.flatten().tolist(),
                strict=True,
            )
        ]
        floor = torch.tensor([edge.floor for edge in edges], dtype=logits.dtype).view(total.shape)
        dropped = torch.tensor([edge.dropped for edge in edges]).view(total.shape)
        tied = self.ties != "keep" and bool(dropped.any())
        if are_few((len(edge.head) for edge in edges), vocab):
            stay = [e.head[column[e.head] >= e.floor] for e, column in zip(edges, columns, strict=True)]
            left = candidates(logits, stay)
            if tied:
                left = attrs.evolve(left, logits=self._without_ties(left.logits, floor, dropped))
            return left
        masked = mask_below(logits, floor)
        return self._without_ties(masked, floor, dropped) if tied else masked

    def among(self, left: Candidates, history: History) -> Candidates:
        """Same as a call on the remaining candidates; on the host."""
        if is_scalar(self.p, 1.0):
            return left
        logits = left.logits.numpy(force=True)
        ascending = np.sort(logits, axis=-1)
        best = ascending[..., -1:]
        if self.ties != "last" or isinstance(self.p, Tensor) or not np.isfinite(best).all():
            return attrs.evolve(left, logits=self(left.logits, history))
        weights = in_units(torch.from_numpy(ascending - best)).numpy()
        reached = weights.cumsum(axis=-1, dtype=np.float64)
        falls = reached <= (1 - self.p) * reached[..., -1:]
        falls[..., -self.min_tokens :] = False
        # Ids ascend, so a stable sort drops the lower of equal ids first, as a call does.
        order = logits.argsort(axis=-1, kind="stable")
        kept = logits.copy()
        for cell in np.ndindex(*logits.shape[:-1]):
            kept[cell][order[cell][falls[cell]]] = -np.inf
        return attrs.evolve(left, logits=torch.from_numpy(kept))

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`of_few` supports these parameters."""
        return self.ties == "last" and not isinstance(self.p, Tensor)

    def of_few(self, few: Few, cell: Cell) -> Few | None:
        """See :class:`~decodekit.decoding.sampling.few_tokens.Pointwise`."""
        if self.p == 1.0:
            return few
        ascending = few.ascending()
        if not math.isfinite(few.largest()):
            return None
        fallen = self._fallen_of(ascending)
        if not fallen or ascending.item(fallen) > ascending.item(fallen - 1):
            return few.without_smallest(fallen)
        ids, scores = few.arrays()
        # Ids ascend, so a stable sort drops the lower of equal ids first, as a call does.
        kept = scores.argsort(kind="stable")[fallen:]
        kept.sort()
        return Few(ids.take(kept), scores.take(kept), ascending[fallen:])

    def _fallen_of(self, ascending: NDArray[Any]) -> int:
        """Number of tokens to drop from the *ascending* logits ``[n]``."""
        p, gaps = cast("float", self.p), ascending - ascending.item(-1)
        reached = np.add.accumulate(np.exp(gaps), dtype=np.float64)
        total, most = reached.item(-1), len(ascending) - self.min_tokens
        spared = (1 - p) * total
        fallen = int(reached.searchsorted(spared, "right"))
        below = reached.item(fallen - 1) if fallen else 0.0
        above = reached.item(fallen) if fallen < len(gaps) else spared
        if spared - below < _NEAR * total or above - spared < _NEAR * total:
            # Within rounding distance of the edge: use the exact integer weights, as a call does.
            reached = np.add.accumulate(in_units(torch.from_numpy(gaps)).numpy(), dtype=np.float64)
            fallen = int(np.count_nonzero(reached <= (1 - p) * reached[-1]))
        return fallen if fallen < most else max(0, most)

    def _without_ties(self, logits: Tensor, floor: Tensor, dropped: Tensor) -> Tensor:
        """Mask *dropped* of the tokens tied at the *floor*, in the order given by *ties*."""
        tied = logits == floor
        reached = tied.cumsum(dim=-1)
        falls = reached > reached[..., -1:] - dropped if self.ties == "first" else reached <= dropped
        return logits.masked_fill(tied & falls, -torch.inf)
