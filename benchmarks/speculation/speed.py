"""
Question: how much faster does a draft make decoding, and does it cost anything where it is useless.

The target is the bundled one enlarged to nearly the shape of SmolLM2-135M (18/6 heads of 32 dimensions
instead of 9/3 of 64, and a vocabulary of 4,096), the draft the bundled one as it is: real acceptance at a
real shape. In turns, on the same prompts from files that neither model was trained on, with equal weights
and dtype, after warm-up:

- plain decoding, speculation at several lengths, transformers.generate with and without an assistant model;
- plain decoding and speculation with a draft that is always wrong;
- the same with and without a draft for a batch of rows.

The speed-up is compared with its limit (Leviathan, Kalman and Matias, 2023, Fast Inference from
Transformers via Speculative Decoding, https://arxiv.org/abs/2211.17192, theorem 3.8, with measured costs):
tokens a step over k c + v(k + 1), where c is a forward of the draft and v(w) one of the target of width w,
in forwards of plain decoding, all timed inside the runs. The difference is the host's time and the draft's
prefill.

OpenMP's threads synchronise some hundred times in a forward. Limit spin-waiting to some microseconds:
GOMP_SPINCOUNT=10000. If threads always sleep (OMP_WAIT_POLICY=PASSIVE), a forward takes twice as long; if
they always spin on a machine with other load, up to four times.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
import transformers

from ..measuring.arguments import add_common, check_at_least, check_temperatures
from ..measuring.compilations import recorded_compilations
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Table
from ..models.bundled_pair import held_out_prompts
from ..models.enlarge import SMOLLM2_135M
from .costs import figures, table
from .pair import BATCH_WIDTHS, DRAFT_WIDTHS, WIDTHS, NegatedDecoder, Pair, TimedDecoder, compiled, models
from .runs import Run, System, plain_and_drafted, take_turns, transformers_run

OF_FORMULA, OF_ASSISTED, OF_PLAIN, ADVERSARIAL, BATCH = 0.95, 1.5, 4.0, 0.98, 1.0
"""Goals: the share of the formula, and times the speed of assisted, plain, plain and plain decoding."""

PARTS = ("row", "adversarial", "batch")


@attrs.frozen
class Section:
    """One question's share of the report."""

    table: Table
    thresholds: list[Threshold]
    notes: list[str]
    results: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--length", nargs="+", default=["1", "2", "4", "8", "adaptive"])
    add("--temp", type=float, nargs="+", default=[0.0, 0.8])
    add("--only", nargs="+", choices=PARTS, default=PARTS)
    add("--prompts", type=int, default=6)
    add("--tokens", type=int, default=128)
    add("--adversarial-tokens", type=int, default=512)
    add("--batch", type=int, default=8)
    add("--weights", help="the compiled target's, such as int8; transformers keeps the dtype")
    add("--transformers-dtype", help="of transformers, where another suits it better")
    add("--cache", type=Path, help="folder that keeps compiled decoders")
    add("--quick", action="store_true", help="few prompts, tokens and rounds")
    add_common(parser, rounds=3)


def run(options: argparse.Namespace) -> None:
    """Measure, and report."""
    _check_lengths(options.length, options.only)
    for name in ("prompts", "tokens", "adversarial_tokens", "batch", "threads", "rounds"):
        check_at_least(name, getattr(options, name), 1)
    check_temperatures("temp", options.temp)
    if options.quick:
        options.prompts, options.tokens, options.adversarial_tokens, options.rounds = 2, 48, 96, 1
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    both = models(options.dtype)
    theirs = both if options.transformers_dtype is None else models(options.transformers_dtype)
    sizes = [model.num_parameters() for model in both]
    sections: list[Section] = []

    def pair(rows: int, widths: tuple[int, ...]) -> Pair:
        target = compiled(both[0], "target", widths, rows, options.cache, weights=options.weights)
        # For a small draft model, thread synchronisation outweighs compute.
        draft = compiled(both[1], "draft", DRAFT_WIDTHS, rows, options.cache, threads=1)
        return Pair(theirs, TimedDecoder(target), TimedDecoder(draft))

    if {"row", "adversarial"} & set(options.only):
        single = pair(1, WIDTHS)
        for name, measure in (("row", one_row), ("adversarial", adversarial)):
            if name in options.only:
                sections += [measure(single, options, temperature) for temperature in options.temp]
        del single
    if "batch" in options.only:
        batched = pair(options.batch, BATCH_WIDTHS)
        sections += [batch(batched, options, temperature) for temperature in options.temp]
    report = Report(
        benchmark="speculation" if options.weights is None else f"speculation-{options.weights}",
        question="How much faster does a draft make decoding, and what does it cost where it is useless?",
        settings={
            "dtype": options.dtype,
            "weights": options.weights,
            "transformers_dtype": options.transformers_dtype,
            "threads": options.threads,
            "rounds": options.rounds,
        },
        tables=[section.table for section in sections],
        thresholds=[threshold for section in sections for threshold in section.thresholds],
        notes=[
            f"Target: the bundled one enlarged to {SMOLLM2_135M}: {sizes[0]:,} weights, the same function; "
            f"draft: the bundled one, {sizes[1]:,} weights, {sizes[1] / sizes[0]:.1%} of the target's.",
            *(note for section in sections for note in section.notes),
        ],
        results=[section.results for section in sections],
    )
    finish(report, options.json)


def one_row(pair: Pair, options: argparse.Namespace, temperature: float) -> Section:
    """Batch 1: beside plain decoding, the formula and transformers."""
    target, draft = pair.models
    systems = plain_and_drafted(pair, options.length, temperature, options.tokens)
    systems["transformers"] = transformers_run(target, temperature, options.tokens)
    systems["transformers assisted"] = transformers_run(
        target, temperature, options.tokens, assistant_model=draft
    )
    batches = [[prompt] for prompt in held_out_prompts(options.prompts)]
    runs = take_turns(systems, batches, options.rounds)
    lines = figures(runs, WIDTHS)
    texts = {name: [of_batch[0].ids for of_batch in own] for name, own in runs.items()}
    same = {
        name: own == texts["plain"]
        for name, own in texts.items()
        if name.startswith("k = ") and "BlockVerification" not in name
    }
    drafted = _drafted(lines)
    longest = max(drafted, key=lambda line: len(line["conditional_acceptance"]))
    shares = " ".join(f"{share:.3f}" for share in longest["conditional_acceptance"])
    rates = {line["name"]: line["tokens_per_second"] for line in lines}
    best = _fastest(drafted)
    at = f"temperature {temperature:g}"
    thresholds = []
    for line in [line for line in drafted if "adaptive" in line["name"]] or [best]:
        name, of_assisted = line["name"], line["tokens_per_second"] / rates["transformers assisted"]
        thresholds += [
            Threshold(f"{name}, of the formula, {at}", line["of_formula"], ">=", OF_FORMULA),
            Threshold(f"{name}, of transformers assisted, {at}", of_assisted, ">=", OF_ASSISTED, "×"),
        ]
    if options.weights is not None:
        what = f"{options.weights} and a draft, of transformers plain, {at}"
        times = rates[best["name"]] / rates["transformers"]
        thresholds.append(Threshold(what, times, ">=", OF_PLAIN, "×"))
    title = f"Batch 1, {at}: {len(batches)} prompts, {options.tokens} new tokens each"
    notes = [
        f"{at}: the same text as plain decoding: "
        + ", ".join(f"{name} {'yes' if equal else 'NO'}" for name, equal in same.items()),
        f"{at}: accepted draft tokens by position: {shares}; the fastest: {best['name']}",
    ]
    results = {"temperature": temperature, "lines": lines, "same": same}
    return Section(table(title, lines), thresholds, notes, results)


def adversarial(pair: Pair, options: argparse.Namespace, temperature: float) -> Section:
    """A draft that is always wrong."""
    tokens, draft = options.adversarial_tokens, NegatedDecoder(pair.draft)
    systems: dict[str, System] = plain_and_drafted(pair, [], temperature, tokens)
    for length in options.length:
        # A new controller for every run, without knowledge of the draft.
        def fresh(prompts: list[list[int]], length: str = length) -> Run:
            return plain_and_drafted(pair, [length], temperature, tokens, draft)[f"k = {length}"](prompts)

        systems[f"k = {length}"] = fresh
    batches = [[prompt] for prompt in held_out_prompts(1)]
    lines = figures(take_turns(systems, batches, options.rounds), WIDTHS)
    line = _adaptive(lines) or lines[-1]
    at = f"temperature {temperature:g}"
    what = f"{line['name']}, a draft always wrong, of plain decoding, {at}"
    thresholds = [Threshold(what, line["decode_speed_up"], ">=", ADVERSARIAL, "×")]
    title = f"A draft that is always wrong, {at}, {tokens} new tokens"
    return Section(table(title, lines), thresholds, [], {"temperature": temperature, "lines": lines})


def batch(pair: Pair, options: argparse.Namespace, temperature: float) -> Section:
    """Several rows, each with its own number of accepted draft tokens."""
    systems = plain_and_drafted(pair, options.length, temperature, options.tokens)
    rows = held_out_prompts(options.batch)
    if len(rows) < options.batch:
        raise ValueError(f"'batch' must be at most {len(rows)}, the held-out prompts: got {options.batch}")
    batches = [rows]
    places = [tensor.data_ptr() for tensor in pair.target.decoder.cache.tensors]
    with recorded_compilations() as compilations:
        runs = take_turns(systems, batches, options.rounds)
    moved = places != [tensor.data_ptr() for tensor in pair.target.decoder.cache.tensors]
    lines = figures(runs, BATCH_WIDTHS)
    line = _adaptive(lines) or _fastest(_drafted(lines))
    at = f"temperature {temperature:g}"
    what = f"{line['name']}, batch {options.batch}, of plain decoding, {at}"
    thresholds = [Threshold(what, line["times_plain"], ">=", BATCH, "×")]
    title = f"Batch {options.batch}, {at}: {options.tokens} new tokens a row"
    notes = [f"Batch {options.batch}, {at}: compilations: {len(compilations)}; caches moved: {moved}"]
    counts = {"compilations": len(compilations), "caches_moved": moved}
    results = {"temperature": temperature, "lines": lines, **counts}
    return Section(table(title, lines), thresholds, notes, results)


def _check_lengths(lengths: Sequence[str], parts: Sequence[str]) -> None:
    """Refuse lengths for which there is no width."""
    most, in_batches = WIDTHS[-1] - 1, BATCH_WIDTHS[-1] - 1
    whole = [int(name) for name in lengths if name.isdecimal()]
    others = set(lengths) - {"adaptive", *map(str, whole)}
    if others or not all(1 <= length <= most for length in whole):
        raise ValueError(f"'length' must be 1 to {most}, or adaptive: got {' '.join(lengths)}")
    if "batch" in parts and "adaptive" not in lengths and min(whole) > in_batches:
        raise ValueError(
            f"'length' must have one of at most {in_batches}, for batches: got {' '.join(lengths)}"
        )


def _drafted(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if "formula" in line]


def _fastest(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return max(lines, key=lambda line: line["tokens_per_second"])


def _adaptive(lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next((line for line in _drafted(lines) if line["name"] == "k = adaptive"), None)
