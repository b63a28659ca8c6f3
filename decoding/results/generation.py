"""The result of a run."""

from collections.abc import Iterable

import attrs

from ..protocols import Finish
from .events import Event
from .html import shortened, summary_table
from .logprobs import TokenLogprob
from .statistics import Statistics

_SHOWN_ROWS = 4
"""Rows of a summary as HTML."""


@attrs.frozen(eq=False, repr=False)
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

    def __repr__(self) -> str:
        """
        One line: rows, tokens, reasons and the beginning of the first row.

        >>> Generation([[1]], [[2, 3]], ["Hi"], [Finish("max_new_tokens")], Statistics())
        <Generation of 1 row: 2 tokens, max_new_tokens, 'Hi'>
        """
        rows = "1 row" if len(self.ids) == 1 else f"{len(self.ids)} rows"
        reasons = ", ".join(sorted({reason or "not finished" for reason in self.finish_reasons}))
        parts = [f"{sum(map(len, self.ids))} tokens", reasons, self._shown(0) if self.ids else ""]
        return f"<Generation of {rows}: {', '.join(part for part in parts if part)}>"

    def _repr_html_(self) -> str:
        """The first rows and the statistics."""
        shown = {
            f"row {row} ({reason or 'not finished'})": self._shown(row)
            for row, reason in enumerate(self.finish_reasons[:_SHOWN_ROWS])
        }
        left_out = len(self.ids) - len(shown)
        more = {"": f"and {left_out} more"} if left_out else {}
        return summary_table("Generation", {**shown, **more, "statistics": repr(self.statistics)})

    def _shown(self, row: int) -> str:
        ids = self.ids[row]
        if self.text is not None:
            return shortened(self.text[row])
        return str(ids) if len(ids) <= 12 else f"[{', '.join(map(str, ids[:12]))}, ...]"


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
