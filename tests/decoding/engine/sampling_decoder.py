"""A scripted decoder that samples in its forwards."""

from typing import Any

import attrs
import torch
from torch import Tensor

from decodekit.decoding import Greedy, History, Place, Placement, Processor, Sampler, SamplingPipeline
from decodekit.decoding.scores import Scores
from decodekit.testing import ScriptedDecoder


@attrs.define(eq=False)
class SamplingDecoder(ScriptedDecoder):
    """
    Samples as the host does, and checks its arguments.

    Where a column holds a token, its history must end with that token, after all that the
    cache holds before it. Elsewhere the sample is undefined.
    """

    processors: Processor | None = None
    sampler: Sampler = attrs.field(factory=Greedy)
    wide: bool = False
    """Whether forwards that score the last column only sample as well."""

    sampled: int = attrs.field(default=0, init=False)
    """Number of sampling forwards."""

    @property
    def sampling_widths(self) -> tuple[int, ...]:
        """Those that score every column; with *wide* all."""
        return tuple(w for w in self.widths if self.wide or w <= self.scored_width)

    def can_sample(self, processors: Processor | None, sampler: Sampler, rows: int) -> bool:
        """Exactly these."""
        return processors is self.processors and sampler is self.sampler

    def forward_and_sample(self, ids: Tensor, cache_pos: Tensor, history: History) -> tuple[Tensor, Scores]:
        """Sample in columns that hold a token."""
        logits = self.forward(ids, cache_pos)
        columns = logits.shape[1]
        assert history.length.shape == (self.batch_size, columns)
        sampled = torch.full((self.batch_size, columns), 7_000_000)
        for row in range(self.batch_size):
            for column in range(columns):
                at = ids.shape[1] - columns + column
                if ids[row, at] < 0:
                    continue
                end = int(cache_pos[row]) + at + 1
                assert history.length[row, column] == end
                assert history.before(row, column).tolist() == self.slots[row, :end].tolist()
                one = attrs.evolve(
                    history.rows(slice(row, row + 1)), length=history.length[row, column].reshape(1, 1)
                )
                pipeline = SamplingPipeline(self.processors, self.sampler)
                sampled[row, column] = pipeline(logits[row, column].reshape(1, 1, -1), one)[0]
        self.sampled += 1
        return sampled, Scores(lambda: logits)

    def explain(self, processors: Processor | None, sampler: Sampler) -> Placement:
        """All in one place."""
        where: Any = "device" if self.can_sample(processors, sampler, 1) else "host"
        return Placement((Place(repr(sampler), where, "as scripted"),), ("a note",))
