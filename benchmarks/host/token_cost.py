"""
Question: what does a token cost on the host, over and above the forward.

A decoder that costs next to nothing returns prepared logits and records when it was called: the time from
one call to the next is everything else, such as sampling, stopping and streaming. Beside it transformers'
own ``generate`` around a model that costs next to nothing, with the same processors, in turns. The time of
bare calls is subtracted from both. A run gives the median over its tokens, the result is the median over
the runs.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutput

from ...decoding import (
    DecoderShape,
    EndOfSequence,
    Generator,
    Greedy,
    MaxNewTokens,
    Processor,
    Sample,
    Sampler,
)
from ...processors import RepetitionPenalty, Temperature, TopK, TopP
from ..measuring.arguments import add_common
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Spread, Table
from ..measuring.timing import median_ratio

PROMPT, UNCOUNTED, LINES = 256, 4, 4
"""Prompt length, uncounted first tokens of a run, and number of prepared logits."""

END = 0
"""The end-of-sequence id; its logit is low, so that no row ends."""

CASES: dict[str, tuple[Processor | None, Sampler, dict[str, Any], float | None]] = {
    "greedy": (None, Greedy(), {"do_sample": False}, 60.0),
    "penalty + T + top-k 50 + top-p 0.9": (
        RepetitionPenalty(1.1) | Temperature(0.8) | TopK(50) | TopP(0.9),
        Sample(seed=7),
        {"do_sample": True, "repetition_penalty": 1.1, "temperature": 0.8, "top_k": 50, "top_p": 0.9},
        None,
    ),
}
"""Chain and sampler, transformers' options for them, and the goal in microseconds at batch 1."""

TIMES_FASTER = 20.0
"""The goal of a case without a goal of its own: times faster than transformers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--vocab", type=int, nargs="+", default=[32_000, 151_936])
    add("--batch", type=int, nargs="+", default=[1, 8])
    add("--case", nargs="+", choices=sorted(CASES), default=list(CASES))
    add("--tokens", type=int, default=64, help="new tokens of a run")
    add_common(parser, rounds=7, threads=1)


def run(options: argparse.Namespace) -> None:
    """Measure every case, and report."""
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    results = [
        measure(case, batch, vocab, options.tokens, options.rounds)
        for case in options.case
        for vocab in options.vocab
        for batch in options.batch
    ]
    rows = [
        (
            found["case"],
            found["vocab"],
            found["batch"],
            str(Spread.stored(found["ours_us"], found["ours_spread_us"], options.rounds)),
            str(Spread.stored(found["transformers_us"], found["transformers_spread_us"], options.rounds)),
            found["times_faster"],
        )
        for found in results
    ]
    thresholds = []
    for found in results:
        what = f"{found['case']}, vocabulary {found['vocab']}, batch {found['batch']}"
        if found["goal_us"]:
            thresholds.append(Threshold(what, found["ours_us"], "<=", found["goal_us"], " µs"))
        if found["goal_times_faster"]:
            thresholds.append(Threshold(what, found["times_faster"], ">=", found["goal_times_faster"], "×"))
    columns = ("chain", "vocabulary", "batch", "ours", "transformers", "times")
    report = Report(
        benchmark="host",
        question="What does a token cost on the host, over and above the forward?",
        settings={
            "prompt": PROMPT,
            "tokens": options.tokens,
            "threads": options.threads,
            "rounds": options.rounds,
        },
        tables=[Table("Microseconds a step of all rows, the bare forward subtracted", columns, rows)],
        thresholds=thresholds,
        results=results,
    )
    finish(report, options.json)


def measure(case: str, batch: int, vocab: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Time one case at one batch size and vocabulary: both systems and their bare forwards, in turns."""
    rng = torch.Generator().manual_seed(batch)
    table = 3 * torch.randn(LINES, batch, 1, vocab, generator=rng)
    table[..., END] = -100.0
    prompts = torch.randint(1, vocab, (batch, PROMPT), generator=rng)
    prepared = PreparedLogits(table)
    decoder = PreparedDecoder(prepared, batch, vocab, tokens)
    model = PreparedModel(prepared, batch, vocab, tokens)
    processors, sampler, names, goal = CASES[case]
    generator = Generator(
        decoder,
        processors=processors,
        sampler=sampler,
        stop=EndOfSequence(END) | MaxNewTokens(tokens),
    )
    fed, start = prompts[:, :1].contiguous(), torch.zeros(batch, dtype=torch.int64)

    def bare(call: Callable[[], object]) -> None:
        for _ in range(tokens):
            call()

    whole: Any = model.generate

    def generate() -> None:
        mask = torch.ones_like(prompts)
        whole(prompts, attention_mask=mask, max_new_tokens=tokens, eos_token_id=END, **names)

    runs: dict[str, Callable[[], object]] = {
        "bare": lambda: bare(lambda: decoder.forward(fed, start)),
        "ours": lambda: generator(prompts),
        "model": lambda: bare(lambda: model(fed)),
        "transformers": generate,
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        for counted in [False, *[True] * rounds]:
            for name, run in runs.items():
                run()
                spent = prepared.microseconds()
                if counted:
                    times[name].append(spent)
    ours, theirs = (
        [a - b for a, b in zip(times[whole], times[part], strict=True)]
        for whole, part in (("ours", "bare"), ("transformers", "model"))
    )
    return {
        "case": case,
        "vocab": vocab,
        "batch": batch,
        "bare_us": statistics.median(times["bare"]),
        "ours_us": statistics.median(ours),
        "ours_spread_us": [min(ours), max(ours)],
        "transformers_us": statistics.median(theirs),
        "transformers_spread_us": [min(theirs), max(theirs)],
        "times_faster": median_ratio(theirs, ours),
        "goal_us": goal if batch == 1 else None,
        "goal_times_faster": TIMES_FASTER if goal is None else None,
    }


class PreparedLogits:
    """Logits from a table, line after line, and the time of each call."""

    def __init__(self, table: Tensor) -> None:
        self.table: list[Tensor] = list(table)
        self.times: list[int] = []

    def logits(self) -> Tensor:
        """The next ``[batch, 1, vocab]``."""
        self.times.append(time.perf_counter_ns())
        return self.table[len(self.times) % LINES]

    def microseconds(self) -> float:
        """The median time from one call to the next, without the first ones; clears the record."""
        gaps = [1e-3 * (b - a) for a, b in zip(self.times[:-1], self.times[1:], strict=True)]
        self.times.clear()
        return statistics.median(gaps[UNCOUNTED:])


class PreparedDecoder:
    """A decoder that returns prepared logits for any tokens."""

    def __init__(self, prepared: PreparedLogits, batch: int, vocab: int, tokens: int) -> None:
        self.shape = DecoderShape(batch, PROMPT + tokens, vocab, (1, PROMPT), 1)
        self.prepared = prepared

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """The next prepared logits."""
        return self.prepared.logits()


class PreparedModel(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[no-untyped-call]
    """A model of transformers that returns prepared logits."""

    config_class = transformers.PretrainedConfig

    def __init__(self, prepared: PreparedLogits, batch: int, vocab: int, tokens: int) -> None:
        numbers: dict[str, Any] = {"vocab_size": vocab, "is_encoder_decoder": False}
        super().__init__(transformers.PretrainedConfig(**numbers))
        self.generation_config = transformers.GenerationConfig(  # type: ignore[no-untyped-call]
            use_cache=False, pad_token_id=END
        )
        self.placeholder = torch.nn.Parameter(torch.zeros(1))
        self.prepared = prepared

    def forward(self, input_ids: Tensor, **options: Any) -> CausalLMOutput:
        """The next prepared logits."""
        return CausalLMOutput(logits=self.prepared.logits())

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> dict[str, Any]:
        """The ids alone."""
        return {"input_ids": input_ids}
