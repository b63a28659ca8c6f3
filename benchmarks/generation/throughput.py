"""
Question: how many tokens a second, for prompts and answers of 128 and 2,048 tokens.

As the model performance page of Intel Gaudi lists them, with its figures beside ours. What counts is
what was generated, of all rows, over the whole time, prompts included.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from .machine import machine_facts
from .published import THROUGHPUT_SOURCE, THROUGHPUTS
from .report import Report, Spread, Table
from .subject import Subject, decoder_settings, device_name, generate, prompt_widths, random_prompts

_WARM_UP = 4


@attrs.frozen
class Measured:
    """One subject at one batch size and one pair of lengths."""

    subject: Subject
    batch: int
    lengths: tuple[int, int]
    device: str
    seconds: tuple[float, ...]
    first_seconds: tuple[float, ...]
    tokens: int
    settings: dict[str, Any]

    @property
    def rates(self) -> list[float]:
        """Tokens a second, a number a round."""
        return [self.tokens / seconds for seconds in self.seconds]


def measure(subject: Subject, batch: int, lengths: Sequence[tuple[int, int]], rounds: int) -> list[Measured]:
    """
    Let one decoder generate, at all *lengths*.

    Args:
        subject: The decoder is compiled of it.

        batch: Rows.

        lengths: Of prompt and answer, each at least 1.

        rounds: Counted runs.

    Raises:
        ValueError: An argument breaks its rule.
    """
    if not lengths or any(length < 1 for pair in lengths for length in pair):
        raise ValueError(f"'lengths' must be pairs of whole numbers >= 1: got {list(lengths)}")
    if rounds < 1:
        raise ValueError(f"'rounds' must be >= 1: got {rounds}")
    widths = prompt_widths([prompt for prompt, _ in lengths])
    decoder = subject.decoder(batch, max(map(sum, lengths)), widths)
    found = []
    for prompt, answer in lengths:
        prompts = random_prompts(decoder, prompt)
        generate(decoder, prompts, min(_WARM_UP, answer))
        runs = [generate(decoder, prompts, answer) for _ in range(rounds)]
        found.append(
            Measured(
                subject,
                batch,
                (prompt, answer),
                device_name(decoder),
                tuple(run.seconds for run in runs),
                tuple(run.first_seconds for run in runs),
                runs[0].tokens,
                decoder_settings(decoder),
            )
        )
    return found


def throughput(
    subjects: Sequence[Subject],
    batches: Sequence[int],
    lengths: Sequence[tuple[int, int]],
    rounds: int,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure every subject at every batch size."""
    found: list[Measured] = []
    for subject in subjects:
        for batch in batches:
            progress(f"{subject.name}, batch {batch}")
            found += measure(subject, batch, lengths, rounds)
    return report(found, rounds)


def report(found: Sequence[Measured], rounds: int) -> Report:
    """Ours, and what was published of the same shape."""
    rows: list[tuple[Any, ...]] = [
        (
            f"{each.subject.name}{', SCALED DOWN' if each.subject.is_scaled else ''}, {each.device}",
            "/".join(map(str, each.lengths)),
            each.batch,
            str(Spread.of(each.rates)),
            str(Spread.of(each.first_seconds)),
        )
        for each in found
    ]
    shapes = {each.subject.name for each in found}
    published = [each for each in THROUGHPUTS if each.shape in shapes]
    rows += [
        (
            f"published: {each.shape}, Gaudi, {each.cards} card{'s' * (each.cards > 1)}",
            "/".join(map(str, each.lengths)),
            each.batch,
            each.tokens_per_second,
            None,
        )
        for each in published
    ]
    models = {each.subject.description: None for each in found}
    notes = [f"{model}." for model in models]
    if any(each.subject.is_scaled for each in found):
        notes.append(
            "A model that is scaled down says nothing of the full one: its figures are no figures of it."
        )
    if published:
        notes.append(f"Published: {THROUGHPUT_SOURCE}; another device, and so no comparison of programs.")
    columns = ("model and device", "prompt/answer", "batch", "tokens/s", "seconds to the first token")
    return Report(
        benchmark="throughput",
        question="How many tokens a second, for short and long prompts and answers?",
        settings={"rounds": rounds, **found[0].settings},
        tables=[Table("Tokens a second, all rows together", columns, rows)],
        notes=notes,
        results=[
            {
                "model": each.subject.description,
                "batch": each.batch,
                "lengths": each.lengths,
                "device": each.device,
                "seconds": each.seconds,
                "first_seconds": each.first_seconds,
                "tokens": each.tokens,
                "settings": each.settings,
            }
            for each in found
        ],
        machine=machine_facts(found[0].device),
    )
