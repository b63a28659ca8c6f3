"""
Question: what do weights in 8 and 4 bits save, and what do they cost.

Milliseconds of a forward by format, dtype and width, of a random model with the shapes of SmolLM2-135M
and a few of its layers, compiled for the CPU; the formats take turns, round after round. And how far
the bundled target drifts in each format from its own float32 weights, on files that it has not seen.

    python benchmarks/weights.py [--layers 4] [--widths 1 5 128] [--dtypes float32 bfloat16]
                                 [--threads 2] [--texts 48] [--json FILE]
"""

import argparse
import pathlib
import statistics
import time
from typing import Any

import torch
import transformers
from acceptance import PAIR, held_out_prompts

from decodekit.bench.report import Report, Spread, Table, finish
from decodekit.neuron_backend import StaticDecoder, compile_decoder, drift

FORMATS = (None, "int8", "int4")
SHAPES = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
POSITION = 512
"""Tokens before the forward that is timed."""

IN_A_ROW = 5


def decoders(dtype: str, layers: int, widths: list[int], threads: int) -> dict[str, StaticDecoder]:
    """One model in each format."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPES, num_hidden_layers=layers)
    model = transformers.AutoModelForCausalLM.from_config(config)
    shape = {"max_length": 1024, "widths": widths, "spans": (1024,), "threads": threads}
    return {
        weights or dtype: compile_decoder(model, dtype=dtype, weights=weights, target="cpu", **shape)
        for weights in FORMATS
    }


def milliseconds(made: dict[str, StaticDecoder], width: int, rounds: int) -> dict[str, list[float]]:
    """Each decoder's times, one a round: the median of some in a row, after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in made}
    ids, cache_pos = torch.zeros(1, width, dtype=torch.int64), torch.tensor([POSITION])
    for _ in range(rounds):
        for name, decoder in made.items():
            few = []
            for _ in range(IN_A_ROW + 1):
                start = time.perf_counter()
                decoder.forward(ids, cache_pos)
                few.append(1e3 * (time.perf_counter() - start))
            times[name].append(statistics.median(few[1:]))
    return times


def drifts(texts: int, dtypes: list[str]) -> list[dict[str, Any]]:
    """Of the bundled target, from its own weights in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(PAIR / "target", dtype=torch.float32)
    prompts = held_out_prompts(texts)
    results = []
    for dtype in dtypes:
        for weights in FORMATS:
            decoder = StaticDecoder(
                model, max_length=128, widths=(128,), scored_width=128, dtype=dtype, weights=weights
            )
            found = drift(model, decoder, prompts)
            results.append(
                {
                    "dtype": dtype,
                    "weights": weights or dtype,
                    "bytes": decoder.weights.bytes,
                    "tokens": found.tokens,
                    "mean_divergence": found.mean_divergence,
                    "max_divergence": found.max_divergence,
                    "agreement": found.agreement,
                    "reference_perplexity": found.reference_perplexity,
                    "perplexity": found.perplexity,
                }
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 5, 128])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()

    forwards = []
    for dtype in args.dtypes:
        made = decoders(dtype, args.layers, args.widths, args.threads)
        for width in args.widths:
            times = milliseconds(made, width, args.rounds)
            forwards += [
                {
                    "dtype": dtype,
                    "weights": name,
                    "width": width,
                    "bytes": made[name].weights.bytes,
                    "ms": statistics.median(spent),
                    "spread_ms": [min(spent), max(spent)],
                    "times_faster": statistics.median(
                        plain / ours for plain, ours in zip(times[dtype], spent, strict=True)
                    ),
                }
                for name, spent in times.items()
            ]
    drifted = drifts(args.texts, args.dtypes)
    timed = [
        (
            f"{each['dtype']} {each['weights']}",
            each["bytes"],
            each["width"],
            str(Spread(each["ms"], *each["spread_ms"], args.rounds)),
            each["times_faster"],
        )
        for each in forwards
    ]
    keys = ("bytes", "mean_divergence", "max_divergence", "agreement", "perplexity", "reference_perplexity")
    changed = [(f"{each['dtype']} {each['weights']}", *(each[key] for key in keys)) for each in drifted]
    finish(
        Report(
            benchmark="weights",
            question="What do weights in 8 and 4 bits save, and what do they cost?",
            settings={"layers": args.layers, "threads": args.threads, "batch": 1, "rounds": args.rounds},
            tables=[
                Table(
                    "Milliseconds of a forward, shapes of SmolLM2-135M",
                    ("format", "bytes", "width", "ms", "times faster"),
                    timed,
                ),
                Table(
                    "Drift of the bundled target from its float32 weights, on files that it has not seen",
                    ("format", "bytes", "mean divergence", "max", "agreement", "perplexity", "was"),
                    changed,
                ),
            ],
            results={"forwards": forwards, "drifts": drifted},
        ),
        args.json,
    )


if __name__ == "__main__":
    main()
