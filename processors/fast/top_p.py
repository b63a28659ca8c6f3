"""Short cuts of top-p: the edge of the nucleus without a sort of the vocabulary."""

import math
from typing import Any, cast

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.history import History
from ...decoding.sampling.candidates import Candidates
from ...decoding.sampling.compiled.operation import Kind, Operation
from ...decoding.sampling.few_tokens import Cell, Few
from ...decoding.sampling.short_cuts import register
from ...decoding.sampling.survivors import are_few, candidates, mask_below
from ..numerics.exact_sum import in_units
from ..parameter import is_scalar, per_row
from ..truncation.top_p import TopP
from .nucleus_edge import edge_of, scratch_weights

_NEAR = 1e-5
"""Margin well above the float32 error of a share of the total mass, some 3e-7."""


@attrs.frozen(eq=False)
class FastTopP:
    """:class:`~decodekit.processors.TopP`, of all tokens, of candidates and of a few tokens."""

    stage: TopP

    def narrow(self, logits: Tensor, history: History) -> Tensor | Candidates:
        """See :class:`~decodekit.decoding.sampling.short_cuts.GivesCandidates`."""
        if is_scalar(self.stage.p, 1.0):
            return logits
        best = logits.amax(dim=-1, keepdim=True)
        if logits.dtype != torch.float32 or not best.isfinite().all():
            return self.stage(logits, history)
        weights = scratch_weights(logits, best)
        total = weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
        spared = (per_row("p", 1 - self.stage.p, total) * total).expand_as(total)
        vocab = logits.shape[-1]
        columns = logits.numpy(force=True).reshape(-1, vocab)
        edges = [
            edge_of(*column, self.stage.min_tokens)
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
        tied = self.stage.ties != "keep" and bool(dropped.any())
        if are_few((len(edge.head) for edge in edges), vocab):
            stay = [e.head[column[e.head] >= e.floor] for e, column in zip(edges, columns, strict=True)]
            left = candidates(logits, stay)
            if tied:
                left = attrs.evolve(left, logits=self._without_ties(left.logits, floor, dropped))
            return left
        masked = mask_below(logits, floor)
        return self._without_ties(masked, floor, dropped) if tied else masked

    def among(self, left: Candidates, history: History) -> Candidates:
        """See :class:`~decodekit.decoding.sampling.short_cuts.TakesCandidates`."""
        if is_scalar(self.stage.p, 1.0):
            return left
        logits = left.logits.numpy(force=True)
        ascending = np.sort(logits, axis=-1)
        best = ascending[..., -1:]
        if self.stage.ties != "last" or isinstance(self.stage.p, Tensor) or not np.isfinite(best).all():
            return attrs.evolve(left, logits=self.stage(left.logits, history))
        weights = in_units(torch.from_numpy(ascending - best)).numpy()
        reached = weights.cumsum(axis=-1, dtype=np.float64)
        falls = reached <= (1 - self.stage.p) * reached[..., -1:]
        falls[..., -self.stage.min_tokens :] = False
        # Ids ascend, so a stable sort drops the lower of equal ids first, as a call does.
        order = logits.argsort(axis=-1, kind="stable")
        kept = logits.copy()
        for cell in np.ndindex(*logits.shape[:-1]):
            kept[cell][order[cell][falls[cell]]] = -np.inf
        return attrs.evolve(left, logits=torch.from_numpy(kept))

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`of_few` supports these parameters."""
        return self.stage.ties == "last" and not isinstance(self.stage.p, Tensor)

    def of_few(self, few: Few, cell: Cell) -> Few | None:
        """See :class:`~decodekit.decoding.sampling.short_cuts.OfFew`."""
        if self.stage.p == 1.0:
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

    def operation(self) -> Operation:
        """See :class:`~decodekit.decoding.sampling.compiled.operation.HasOperation`."""
        return Operation(Kind.KEEP_MASS, cast("float", self.stage.p), self.stage.min_tokens)

    def _fallen_of(self, ascending: NDArray[Any]) -> int:
        """Number of tokens to drop from the *ascending* logits ``[n]``."""
        p, gaps = cast("float", self.stage.p), ascending - ascending.item(-1)
        reached = np.add.accumulate(np.exp(gaps), dtype=np.float64)
        total, most = reached.item(-1), len(ascending) - self.stage.min_tokens
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
        falls = reached > reached[..., -1:] - dropped if self.stage.ties == "first" else reached <= dropped
        return logits.masked_fill(tied & falls, -torch.inf)


register(TopP, FastTopP)
