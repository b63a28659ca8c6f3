"""
Question: how many tokens a second, for prompts and answers of 128 and 2,048 tokens.

The question of the model performance page of Intel Gaudi, with its figures beside ours. The rate is generated
tokens of all rows over the whole time, prompts included.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import attrs

from ..measuring.arguments import add_common, check_at_least, progress
from ..measuring.machine import machine_facts
from ..measuring.report import Report, finish
from ..measuring.tables import Spread, Table
from ..models.measured_model import (
    ModelUnderTest,
    add_model,
    decoder_settings,
    device_name,
    generate,
    model_notes,
    models_of,
    prefill_widths,
    random_prompts,
)
from ..peers.published_figures import LENGTHS, THROUGHPUT_SOURCE, THROUGHPUTS

_WARM_UP = 4


@attrs.frozen
class ThroughputMeasurement:
    """One model at one batch size and one pair of lengths."""

    model: ModelUnderTest
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add_model(parser, "llama-2-7b", several=True)
    add = parser.add_argument
    add("--batch", type=int, nargs="+", default=[1], metavar="N", help="rows (1)")
    add(
        "--lengths",
        type=_pair,
        nargs="+",
        default=LENGTHS,
        metavar="IN/OUT",
        help="of prompt and answer (128/128 128/2048 2048/128 2048/2048)",
    )
    add_common(parser, rounds=3)


def _pair(text: str) -> tuple[int, int]:
    prompt, _, answer = text.partition("/")
    return int(prompt), int(answer)


def run(options: argparse.Namespace) -> None:
    """Measure every model at every batch size, and report."""
    found: list[ThroughputMeasurement] = []
    for model in models_of(options):
        for batch in options.batch:
            progress(f"{model.name}, batch {batch}")
            found += measure(model, batch, options.lengths, options.rounds)
    finish(report(found, options.rounds), options.json)


def measure(
    model: ModelUnderTest, batch: int, lengths: Sequence[tuple[int, int]], rounds: int
) -> list[ThroughputMeasurement]:
    """
    Time generations of all *lengths* with one decoder.

    Args:
        model: Compiled for the measurement.

        batch: Rows.

        lengths: Of prompt and answer, each at least 1.

        rounds: Counted runs.

    Raises:
        ValueError: An argument is invalid.
    """
    if not lengths or any(length < 1 for pair in lengths for length in pair):
        raise ValueError(f"'lengths' must be pairs of whole numbers >= 1: got {list(lengths)}")
    check_at_least("rounds", rounds, 1)
    widths = prefill_widths([prompt for prompt, _ in lengths])
    decoder = model.decoder(batch, max(map(sum, lengths)), widths)
    found = []
    for prompt, answer in lengths:
        prompts = random_prompts(decoder, prompt)
        generate(decoder, prompts, min(_WARM_UP, answer))
        runs = [generate(decoder, prompts, answer) for _ in range(rounds)]
        found.append(
            ThroughputMeasurement(
                model,
                batch,
                (prompt, answer),
                device_name(decoder),
                tuple(run.total_seconds for run in runs),
                tuple(run.first_token_seconds or 0.0 for run in runs),
                runs[0].tokens,
                decoder_settings(decoder),
            )
        )
    return found


def report(found: Sequence[ThroughputMeasurement], rounds: int) -> Report:
    """Our figures, and the published ones of the same shapes."""
    rows: list[tuple[Any, ...]] = [
        (
            each.model.label(each.device),
            "/".join(map(str, each.lengths)),
            each.batch,
            str(Spread.of(each.rates)),
            str(Spread.of(each.first_seconds)),
        )
        for each in found
    ]
    shapes = {each.model.name for each in found}
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
    notes = model_notes(each.model for each in found)
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
                "model": each.model.description,
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
