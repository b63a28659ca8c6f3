"""
Question: how many seconds to reach a length of 1,024 tokens from 25, 50 and 75 % of it.

As the Hugging Face blog on Llama and AWS Inferentia2 asks it, with its figures beside ours.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from .machine import machine_facts
from .published import LATENCIES, LATENCY_LENGTH, LATENCY_SOURCE
from .report import Curves, Report, Spread, Table, number
from .subject import Subject, decoder_settings, device_name, generate, prompt_widths, random_prompts

SHARES = (0.25, 0.5, 0.75)

_WARM_UP = 4
"""Tokens generated before a measurement: every program has run by then."""


@attrs.frozen
class Measured:
    """One subject at one batch size."""

    subject: Subject
    batch: int
    device: str
    seconds: tuple[tuple[float, ...], ...]
    """By share of the length, a number a round."""

    tokens: tuple[int, ...]
    """New ones of all rows, by share."""

    settings: dict[str, Any]


def measure(subject: Subject, batch: int, length: int, rounds: int) -> Measured:
    """
    Let it generate.

    Args:
        subject: A decoder is compiled of it.

        batch: Rows.

        length: Tokens of a row in the end; at least 8.

        rounds: Counted runs.

    Raises:
        ValueError: An argument breaks its rule.
    """
    if length < 8:
        raise ValueError(f"'length' must be >= 8: got {length}")
    if rounds < 1:
        raise ValueError(f"'rounds' must be >= 1: got {rounds}")
    starts = [int(share * length) for share in SHARES]
    decoder = subject.decoder(batch, length, prompt_widths(starts))
    seconds: list[tuple[float, ...]] = []
    tokens = []
    for start in starts:
        prompts = random_prompts(decoder, start)
        generate(decoder, prompts, min(_WARM_UP, length - start))
        runs = [generate(decoder, prompts, length - start) for _ in range(rounds)]
        seconds.append(tuple(run.seconds for run in runs))
        tokens.append(runs[0].tokens)
    settings = decoder_settings(decoder)
    return Measured(subject, batch, device_name(decoder), tuple(seconds), tuple(tokens), settings)


def latency(
    subjects: Sequence[Subject],
    batches: Sequence[int],
    length: int,
    rounds: int,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure every subject at every batch size."""
    found = []
    for subject in subjects:
        for batch in batches:
            progress(f"{subject.name}, batch {batch}")
            found.append(measure(subject, batch, length, rounds))
    return report(found, length, rounds)


def report(found: Sequence[Measured], length: int, rounds: int) -> Report:
    """Ours, and what was published of the same shape."""
    starts = [f"from {int(share * length)}" for share in SHARES]
    rows: list[tuple[Any, ...]] = []
    rates: list[tuple[Any, ...]] = []
    for each in found:
        who = f"{each.subject.name}{', SCALED DOWN' if each.subject.is_scaled else ''}, {each.device}"
        rows.append((who, each.batch, *(str(Spread.of(seconds)) for seconds in each.seconds)))
        spreads = [Spread.of(seconds) for seconds in each.seconds]
        rates.append(
            (who, each.batch, *(n / spread.median for n, spread in zip(each.tokens, spreads, strict=True)))
        )
    shapes = {each.subject.name for each in found}
    for published in LATENCIES:
        if published.shape in shapes:
            rows.append((f"published: {published.name}", published.batch, *map(number, published.seconds)))
            new = [LATENCY_LENGTH - int(share * LATENCY_LENGTH) for share in SHARES]
            speeds = [
                published.batch * n / seconds for n, seconds in zip(new, published.seconds, strict=True)
            ]
            rates.append((f"published: {published.name}", published.batch, *speeds))
    return Report(
        benchmark="latency",
        question=f"How many seconds to reach {length} tokens from 25, 50 and 75 % of them?",
        settings={"length": length, "rounds": rounds, **found[0].settings},
        tables=[
            Table(f"Seconds to reach {length} tokens", ("model and device", "batch", *starts), rows),
            Table("Tokens a second, all rows together", ("model and device", "batch", *starts), rates),
        ],
        notes=_notes(found, length),
        curves=_curves(found, length),
        results=[
            {
                "model": each.subject.description,
                "batch": each.batch,
                "device": each.device,
                "starts": [int(share * length) for share in SHARES],
                "seconds": each.seconds,
                "tokens": each.tokens,
                "settings": each.settings,
            }
            for each in found
        ],
        machine=machine_facts(found[0].device),
    )


def _curves(found: Sequence[Measured], length: int) -> Curves:
    ours = {
        f"{each.subject.name}, batch {each.batch}": [
            (100 * share, Spread.of(seconds).median)
            for share, seconds in zip(SHARES, each.seconds, strict=True)
        ]
        for each in found
    }
    shapes = {each.subject.name for each in found}
    published = {
        f"published: {each.name}": [
            (100 * share, seconds) for share, seconds in zip(SHARES, each.seconds, strict=True)
        ]
        for each in LATENCIES
        if each.shape in shapes
    }
    title = f"Seconds to reach {length} tokens"
    return Curves(title, "start, % of the length", "seconds", ours | published)


def _notes(found: Sequence[Measured], length: int) -> list[str]:
    models = {each.subject.description: None for each in found}
    notes = [f"{model}." for model in models]
    if any(each.subject.is_scaled for each in found):
        notes.append(
            "A model that is scaled down says nothing of the full one: its figures are no figures of it."
        )
    if any(row.shape in {each.subject.name for each in found} for row in LATENCIES):
        notes.append(f"Published: {LATENCY_SOURCE}; another device, and so no comparison of programs.")
        if length != LATENCY_LENGTH:
            notes.append(f"The published figures are of {LATENCY_LENGTH} tokens, ours of {length}.")
    return notes
