"""Log-probabilities of a run."""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from ..history import History
from ..results.logprobs import Logprobs, TokenLogprob, token_logprob
from ..sampling.pipeline import SamplingPipeline
from ..sampling_placement import part_name
from ..scores import Scores
from ..trees import Branch


@attrs.frozen(eq=False)
class LogprobRecorder:
    """Compute the requested log-probabilities from a step's logits while they are valid."""

    pipeline: SamplingPipeline
    """The target's."""

    stages: int
    """After how many stages of its chain."""

    top: int
    """How many top tokens to include."""

    def of_new_tokens(
        self, logits: Tensor, seen: History, branch: Branch, scores: Scores, ids: Sequence[Sequence[int]]
    ) -> list[tuple[TokenLogprob, ...]]:
        """
        The log-probabilities of the tokens that a step kept.

        Args:
            logits: The step's raw logits, ``[batch, n + 1, vocab]``.

            seen: The tokens before each of their columns.

            branch: The columns that the tokens were sampled in.

            scores: The processed logits of these columns, reused where possible.

            ids: The tokens of each row.
        """
        if self.stages == len(self.pipeline.stages):
            return self._read(scores.logits, ids)
        return self._read(branch.gather(self.pipeline.after(self.stages, logits, seen)), ids)

    def of_prompt(
        self, logits: Tensor, seen: History, ids: Sequence[Sequence[int]]
    ) -> list[tuple[TokenLogprob, ...]]:
        """
        The log-probabilities of prompt tokens, each scored as the first token after a prompt.

        Args:
            logits: Raw logits, ``[batch, width, vocab]``.

            seen: The tokens before each column.

            ids: The tokens of each row, from the first column on.
        """
        if not self.stages:
            return self._read(self.pipeline.after(0, logits, seen), ids)
        # Each column has a prompt of its own.
        columns = [
            self.pipeline.after(self.stages, logits[:, column : column + 1], _cut(seen, column))
            for column in range(logits.shape[1])
        ]
        return self._read(torch.cat(columns, dim=1), ids)

    def _read(self, logits: Tensor, ids: Sequence[Sequence[int]]) -> list[tuple[TokenLogprob, ...]]:
        """The log-probabilities of *ids* in each row's first columns."""
        return [
            tuple(token_logprob(column, token, self.top) for column, token in zip(row, new, strict=False))
            for row, new in zip(logits, ids, strict=True)
        ]


def recorder(request: Logprobs, pipeline: SamplingPipeline, vocab_size: int) -> LogprobRecorder:
    """
    The recorder for *request*.

    Raises:
        TypeError: *request* is not a :class:`~..results.logprobs.Logprobs`.

        ValueError: The chain has no such stage or several; or *top* exceeds the vocabulary.
    """
    if not isinstance(request, Logprobs):
        raise TypeError(f"'logprobs' must be a request, such as Logprobs(top=5): got {request!r}")
    if request.top > vocab_size:
        raise ValueError(f"'top' must be <= {vocab_size}, the vocabulary: got {request.top}")
    return LogprobRecorder(pipeline, stages_until(request.stage, pipeline.stages), request.top)


def stages_until(stage: str | int, chain: Sequence[object]) -> int:
    """How many stages of *chain* have run at *stage*."""
    if stage == "raw":
        return 0
    if stage == "processed":
        return len(chain)
    names = [part_name(part) for part in chain]
    found = [place for place, name in enumerate(names) if stage in (place, name)]
    if len(found) != 1:
        known = ", ".join(f"{place} {name!r}" for place, name in enumerate(names)) or "none"
        raise ValueError(
            f"'stage' must be 'raw', 'processed' or one of the chain's stages ({known}): got {stage!r}"
            + (f", which are {len(found)}: give the place of one" if found else "")
        )
    return found[0] + 1


def _cut(seen: History, column: int) -> History:
    """*seen* for one column, with everything before it as the prompt."""
    length = seen.length[:, column : column + 1]
    return attrs.evolve(seen, length=length, prompt=length[:, 0])
