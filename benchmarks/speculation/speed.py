"""
Question: how much faster does a draft make decoding, and does it cost anything where it is useless.

    GOMP_SPINCOUNT=10000 python benchmarks/speculation.py [--dtype float32|bfloat16]
                                [--weights int8] [--length 1 2 4 8 adaptive]
                                [--cache DIR] [--quick] [--json FILE]

The target is the bundled one grown to nearly the shape of SmolLM2-135M (``grow.py``: 18/6 heads of
32 dimensions for its 9/3 of 64, and a vocabulary of 4,096), the draft the bundled one as it is:
real acceptance at a real shape. Side by side, on the same prompts from
files that neither model has seen, weights and type of number, after warm-up, a turn each, round
after round:

- plain decoding, speculation at several lengths, ``transformers.generate`` with and without an
  assistant model;
- plain decoding and speculation with a draft that is always wrong;
- the same with and without a draft for a batch of rows.

What speculation gains is held against what it has to give (Leviathan, Kalman and Matias, 2023,
`Fast Inference from Transformers via Speculative Decoding <https://arxiv.org/abs/2211.17192>`_,
theorem 3.8, with measured costs): tokens a round over k c + v(k + 1), where c is a forward of the
draft and v(w) one of the target over w columns, in forwards of plain decoding, all timed where
they happen. The difference is what the host takes, and the draft's reading of the prompt.

OpenMP's threads wait for each other some hundred times in a forward. Let them spin for some
microseconds and sleep then: ``GOMP_SPINCOUNT=10000``. As long as they always sleep
(``OMP_WAIT_POLICY=PASSIVE``) a forward takes twice as long, and as long as they always spin, on
a machine that others use too, up to four times.
"""

import argparse
import pathlib
from typing import Any

import acceptance
import attrs
import torch
import transformers
from counting_compilations import counting_compilations
from grow import SMOLLM2_135M
from speculation_costs import lines_of, table
from speculation_runs import (
    BATCH_WIDTHS,
    DRAFT_WIDTHS,
    WIDTHS,
    Contender,
    Contrary,
    Pair,
    Run,
    Watched,
    compiled,
    models,
    of_transformers,
    plain_and_drafted,
    take_turns,
)

from decodekit.bench.report import Bar, Report, Table, finish

OF_FORMULA, OF_ASSISTED, OF_PLAIN, ADVERSARIAL, BATCH = 0.95, 1.5, 4.0, 0.98, 1.0
"""What is to be reached: of the formula, and times what others or plain decoding reach."""


@attrs.frozen
class Section:
    """One question's share of the report."""

    table: Table
    bars: list[Bar]
    notes: list[str]
    results: dict[str, Any]


def one_row(pair: Pair, options: argparse.Namespace, temperature: float) -> Section:
    """Batch 1: ours against ourselves, the formula and transformers."""
    target, draft = pair.models
    contenders = plain_and_drafted(pair, options.length, temperature, options.tokens)
    contenders["transformers"] = of_transformers(target, temperature, options.tokens)
    contenders["transformers assisted"] = of_transformers(
        target, temperature, options.tokens, assistant_model=draft
    )
    batches = [[prompt] for prompt in acceptance.held_out_prompts(options.prompts)]
    runs = take_turns(contenders, batches, options.rounds)
    lines = lines_of(runs, WIDTHS)
    texts = {name: [of_batch[0].ids for of_batch in own] for name, own in runs.items()}
    same = {
        name: own == texts["plain"]
        for name, own in texts.items()
        if name.startswith("k = ") and "Block" not in name
    }
    longest = max(lines, key=lambda line: len(line.get("standing", [])))
    stood = " ".join(f"{share:.3f}" for share in longest["standing"])
    own = [line for line in lines if "formula" in line]
    rates = {line["name"]: line["tokens_per_second"] for line in lines}
    best = max(own, key=lambda line: line["tokens_per_second"])
    at = f"temperature {temperature:g}"
    bars = []
    for chosen in [line for line in own if "adaptive" in line["name"]] or [best]:
        name, rate = chosen["name"], chosen["tokens_per_second"]
        bars += [
            Bar(f"{name}, of the formula, {at}", chosen["of_formula"], ">=", OF_FORMULA),
            Bar(
                f"{name}, of transformers assisted, {at}",
                rate / rates["transformers assisted"],
                ">=",
                OF_ASSISTED,
                "×",
            ),
        ]
    if options.weights is not None:
        times = rates[best["name"]] / rates["transformers"]
        bars.append(
            Bar(f"{options.weights} and a draft, of transformers plain, {at}", times, ">=", OF_PLAIN, "×")
        )
    title = f"Batch 1, {at}: {len(batches)} prompts, {options.tokens} new tokens each"
    notes = [
        f"{at}: the same text as plain decoding: "
        + ", ".join(f"{name} {'yes' if equal else 'NO'}" for name, equal in same.items()),
        f"{at}: guesses that stood, by place: {stood}; the fastest: {best['name']}",
    ]
    return Section(
        table(title, lines), bars, notes, {"temperature": temperature, "lines": lines, "same": same}
    )


def adversarial(pair: Pair, options: argparse.Namespace, temperature: float) -> Section:
    """A draft that is always wrong."""
    contenders: dict[str, Contender] = {}
    for name in options.length:
        # A controller that has not met it before, every time.
        def fresh(prompts: list[list[int]], name: str = name) -> Run:
            few = plain_and_drafted(
                pair, [name], temperature, options.adversarial_tokens, draft=Contrary(pair.draft)
            )
            return few[f"k = {name}"](prompts)

        contenders[f"k = {name}"] = fresh
    plain = plain_and_drafted(pair, [], temperature, options.adversarial_tokens)
    batches = [[prompt] for prompt in acceptance.held_out_prompts(1)]
    runs = take_turns({**plain, **contenders}, batches, options.rounds)
    lines = lines_of(runs, WIDTHS)
    last = next((line for line in lines if line["name"] == "k = adaptive"), lines[-1])
    at = f"temperature {temperature:g}"
    bars = [
        Bar(
            f"{last['name']}, a draft always wrong, of plain decoding, {at}",
            last["decode_speed_up"],
            ">=",
            ADVERSARIAL,
            "×",
        )
    ]
    title = f"A draft that is always wrong, {at}, {options.adversarial_tokens} new tokens"
    return Section(table(title, lines), bars, [], {"temperature": temperature, "lines": lines})


def batch(pair: Pair, options: argparse.Namespace, temperature: float) -> Section:
    """Several rows, each accepted its own number of guesses."""
    contenders = plain_and_drafted(pair, options.length, temperature, options.tokens)
    batches = [acceptance.held_out_prompts(options.batch)]
    places = [tensor.data_ptr() for tensor in pair.target.decoder.cache.tensors]
    with counting_compilations() as compilations:
        runs = take_turns(contenders, batches, options.rounds)
    moved = places != [tensor.data_ptr() for tensor in pair.target.decoder.cache.tensors]
    lines = lines_of(runs, BATCH_WIDTHS)
    own = [line for line in lines if "formula" in line]
    best = max(own, key=lambda line: line["tokens_per_second"])
    chosen = next((line for line in own if line["name"] == "k = adaptive"), best)
    at = f"temperature {temperature:g}"
    bars = [
        Bar(
            f"{chosen['name']}, batch {options.batch}, of plain decoding, {at}",
            chosen["times_plain"],
            ">=",
            BATCH,
            "×",
        )
    ]
    title = f"Batch {options.batch}, {at}: {options.tokens} new tokens a row"
    notes = [f"Batch {options.batch}, {at}: compilations: {len(compilations)}; caches moved: {moved}"]
    counts = {"compilations": len(compilations), "caches_moved": moved}
    return Section(table(title, lines), bars, notes, {"temperature": temperature, "lines": lines, **counts})


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--length", nargs="+", default=["1", "2", "4", "8", "adaptive"])
    parser.add_argument("--temp", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument(
        "--only", nargs="+", choices=("row", "adversarial", "batch"), default=["row", "adversarial", "batch"]
    )
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--adversarial-tokens", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", help="the compiled target's, such as int8; transformers keeps the dtype")
    parser.add_argument("--transformers-dtype", help="of transformers, where another suits it better")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, help="folder that keeps compiled decoders")
    parser.add_argument("--quick", action="store_true", help="few prompts, tokens and rounds")
    options = parser.parse_args()
    if options.quick:
        options.prompts, options.tokens, options.adversarial_tokens, options.rounds = 2, 48, 96, 1
    return options


def main() -> None:
    """Measure, and report."""
    options = parsed()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    both = models(options.dtype)
    theirs = both if options.transformers_dtype is None else models(options.transformers_dtype)
    sizes = [model.num_parameters() for model in both]
    sections: list[Section] = []

    def pair(rows: int, widths: tuple[int, ...]) -> Pair:
        target = compiled(both[0], "target", widths, rows, options.cache, weights=options.weights)
        # So small a model is done before a second thread has begun.
        draft = compiled(both[1], "draft", DRAFT_WIDTHS, rows, options.cache, threads=1)
        return Pair(theirs, Watched(target), Watched(draft))

    if {"row", "adversarial"} & set(options.only):
        single = pair(1, WIDTHS)
        for name, measure in (("row", one_row), ("adversarial", adversarial)):
            if name in options.only:
                sections += [measure(single, options, temperature) for temperature in options.temp]
        del single
    if "batch" in options.only:
        several = pair(options.batch, BATCH_WIDTHS)
        sections += [batch(several, options, temperature) for temperature in options.temp]
    settings = ("dtype", "weights", "transformers_dtype", "threads", "rounds")
    finish(
        Report(
            benchmark="speculation" if options.weights is None else f"speculation-{options.weights}",
            question="How much faster does a draft make decoding, and what does it cost where it is useless?",
            settings={name: getattr(options, name) for name in settings},
            tables=[section.table for section in sections],
            bars=[bar for section in sections for bar in section.bars],
            notes=[
                f"Target: the bundled one grown to {SMOLLM2_135M}: {sizes[0]:,} weights, the same function; "
                f"draft: the bundled one, {sizes[1]:,} weights, {sizes[1] / sizes[0]:.1%} of the target's.",
                *(note for section in sections for note in section.notes),
            ],
            results=[section.results for section in sections],
        ),
        options.json,
    )


if __name__ == "__main__":
    main()
