"""The result of a run."""

from collections.abc import Iterable

import attrs

from ..protocols import Finish
from .events import Event
from .logprobs import TokenLogprob
from .statistics import Statistics


@attrs.frozen(eq=False)
class Generation:
    """The collected result of a run, row by row."""

    prompts: list[list[int]]
    """The prompt of each row."""

    ids: list[list[int]]
    """New tokens only."""

    text: list[str] | None
    """The new text, after the prompt's if that is echoed; None without a tokenizer."""

    finishes: list[Finish | None]
    """Why each row ended."""

    statistics: Statistics
    """Counts and seconds."""

    logprobs: list[list[TokenLogprob]] | None = None
    """One for each of the new tokens; None unless requested."""

    seed: int | None = None
    """The seed of the rows' random streams, drawn for this call if the sampler has none of its own."""

    @property
    def finish_reasons(self) -> list[str | None]:
        """
        The reason of each row's finish.

        >>> Generation([[1]], [[2]], None, [Finish("max_new_tokens")], Statistics()).finish_reasons
        ['max_new_tokens']
        """
        return [None if finish is None else finish.reason for finish in self.finishes]

    @property
    def sequences(self) -> list[list[int]]:
        """Prompt and new tokens."""
        return [prompt + new for prompt, new in zip(self.prompts, self.ids, strict=True)]


def collect(
    events: Iterable[Event], prompts: list[list[int]], statistics: Statistics, seed: int | None = None
) -> Generation:
    """Fold *events* into a :class:`Generation`."""
    ids: list[list[int]] = [[] for _ in prompts]
    pieces: list[list[str]] = [[] for _ in prompts]
    finishes: list[Finish | None] = [None] * len(prompts)
    logprobs: list[list[TokenLogprob]] = [[] for _ in prompts]
    has_text = has_logprobs = False
    for event in events:
        ids[event.row] += event.ids
        finishes[event.row] = event.finish
        if event.text is not None:
            has_text = True
            pieces[event.row].append(event.text)
        if event.logprobs is not None:
            has_logprobs = True
            logprobs[event.row] += event.logprobs
    text = ["".join(row) for row in pieces] if has_text else None
    return Generation(prompts, ids, text, finishes, statistics, logprobs if has_logprobs else None, seed)
