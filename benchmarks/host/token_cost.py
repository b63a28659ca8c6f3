"""
What a token costs on the host, over and above the forward.

A decoder that costs next to nothing gives prepared logits, and says when it was called. From one call to
the next is what everything else takes: choosing, stopping, counting, telling. Beside it transformers'
own ``generate`` around a model that costs next to nothing, with the same processors, in turns. The time
of bare calls is taken off either. Of the tokens of a run the median counts, and of the runs the median.

    python benchmarks/host.py [--vocab 32000 151936] [--batch 1 8] [--tokens 64] [--json FILE]
"""

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutput

from decodekit.bench.report import Bar, Report, Spread, Table, finish
from decodekit.decoding import (
    DecoderShape,
    EndOfSequence,
    Generator,
    Greedy,
    MaxNewTokens,
    Processor,
    Sample,
    Selection,
)
from decodekit.processors import RepetitionPenalty, Temperature, TopK, TopP

PROMPT, UNCOUNTED, LINES = 256, 4, 4
"""Tokens before the first new one, first tokens of a run that do not count, and prepared forwards."""

END = 0
"""The id that would end a row; its logit is low."""

CASES: dict[str, tuple[Processor | None, Selection, dict[str, Any], float | None]] = {
    "greedy": (None, Greedy(), {"do_sample": False}, 60.0),
    "penalty + T + top-k 50 + top-p 0.9": (
        RepetitionPenalty(1.1) | Temperature(0.8) | TopK(50) | TopP(0.9),
        Sample(seed=7),
        {"do_sample": True, "repetition_penalty": 1.1, "temperature": 0.8, "top_k": 50, "top_p": 0.9},
        None,
    ),
}
"""Chain and selection, transformers' names for them, and how many microseconds at batch 1 are the goal."""

TIMES_FASTER = 20.0
"""The goal for a case without one of its own."""


class Calls:
    """When each forward was called, and what it gives: one line of the table after another."""

    def __init__(self, table: Tensor) -> None:
        self.table = list(table)
        self.times: list[int] = []

    def logits(self) -> Tensor:
        """The next ``[batch, 1, vocab]``."""
        self.times.append(time.perf_counter_ns())
        return self.table[len(self.times) % LINES]

    def microseconds(self) -> float:
        """From one call to the next: the median, the first of them left out. Forgets them."""
        gaps = [1e-3 * (b - a) for a, b in zip(self.times[:-1], self.times[1:], strict=True)]
        self.times.clear()
        return statistics.median(gaps[UNCOUNTED:])


class PreparedDecoder:
    """Gives what is prepared, whatever it is fed."""

    def __init__(self, calls: Calls, batch: int, vocab: int, tokens: int) -> None:
        self.shape = DecoderShape(batch, PROMPT + tokens, vocab, (1, PROMPT), 1)
        self.calls = calls

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """What is next."""
        return self.calls.logits()


class PreparedModel(transformers.PreTrainedModel, transformers.GenerationMixin):
    """The same for transformers."""

    config_class = transformers.PretrainedConfig

    def __init__(self, calls: Calls, batch: int, vocab: int, tokens: int) -> None:
        super().__init__(transformers.PretrainedConfig(vocab_size=vocab, is_encoder_decoder=False))
        self.generation_config = transformers.GenerationConfig(use_cache=False, pad_token_id=END)
        self.anywhere = torch.nn.Parameter(torch.zeros(1))
        self.calls = calls

    def forward(self, input_ids: Tensor, **options: Any) -> CausalLMOutput:
        """What is next."""
        return CausalLMOutput(logits=self.calls.logits())

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> dict[str, Any]:
        """Ids alone."""
        return {"input_ids": input_ids}


def measure(case: str, batch: int, vocab: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Time one case at one batch size and vocabulary: ours, theirs and both bare, in turns."""
    rng = torch.Generator().manual_seed(batch)
    table = 3 * torch.randn(LINES, batch, 1, vocab, generator=rng)
    table[..., END] = -100.0
    prompts = torch.randint(1, vocab, (batch, PROMPT), generator=rng)
    calls = Calls(table)
    decoder = PreparedDecoder(calls, batch, vocab, tokens)
    model = PreparedModel(calls, batch, vocab, tokens)
    processors, selection, names, goal = CASES[case]
    generator = Generator(
        decoder,
        processors=processors,
        selection=selection,
        stop=EndOfSequence(END) | MaxNewTokens(tokens),
    )
    fed, start = prompts[:, :1].contiguous(), torch.zeros(batch, dtype=torch.int64)

    def bare(call: Callable[[], object]) -> None:
        for _ in range(tokens):
            call()

    def generate() -> None:
        mask = torch.ones_like(prompts)
        model.generate(prompts, attention_mask=mask, max_new_tokens=tokens, eos_token_id=END, **names)

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
                spent = calls.microseconds()
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
        "times_faster": statistics.median(b / a for a, b in zip(ours, theirs, strict=True)),
        "goal_us": goal if batch == 1 else None,
        "goal_times_faster": TIMES_FASTER if goal is None else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 151_936])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--case", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of a run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()

    results = [
        measure(case, batch, vocab, args.tokens, args.rounds)
        for case in args.case
        for vocab in args.vocab
        for batch in args.batch
    ]
    rows = [
        (
            found["case"],
            found["vocab"],
            found["batch"],
            str(Spread(found["ours_us"], *found["ours_spread_us"], args.rounds)),
            str(Spread(found["transformers_us"], *found["transformers_spread_us"], args.rounds)),
            found["times_faster"],
        )
        for found in results
    ]
    bars = []
    for found in results:
        what = f"{found['case']}, vocabulary {found['vocab']}, batch {found['batch']}"
        if found["goal_us"]:
            bars.append(Bar(what, found["ours_us"], "<=", found["goal_us"], " µs"))
        if found["goal_times_faster"]:
            bars.append(Bar(what, found["times_faster"], ">=", found["goal_times_faster"], "×"))
    columns = ("chain", "vocabulary", "batch", "ours", "transformers", "times")
    finish(
        Report(
            benchmark="host",
            question="What does a token cost on the host, over and above the forward?",
            settings={
                "prompt": PROMPT,
                "tokens": args.tokens,
                "threads": args.threads,
                "rounds": args.rounds,
            },
            tables=[Table("Microseconds a step of all rows, the bare forward taken off", columns, rows)],
            bars=bars,
            results=results,
        ),
        args.json,
    )


if __name__ == "__main__":
    main()
