"""
Question: what do weights in 8 and 4 bits save, and what do they cost.

Milliseconds of a forward by format, dtype and width, of a random model with the shapes of SmolLM2-135M
and some of its layers, compiled for the CPU; the formats take turns, round after round. And the drift of the
bundled target in each format from its own float32 weights, on held-out files.
"""

import argparse
import functools
import statistics
from typing import Any

import torch
import transformers

from ...neuron_backend import StaticDecoder, compile_decoder, drift
from ..measuring.arguments import add_common
from ..measuring.report import Report, finish
from ..measuring.tables import Spread, Table
from ..measuring.timing import median_ratio, milliseconds_in_turns
from ..models.bundled_pair import held_out_prompts, pair_folder

FORMATS = (None, "int8", "int4")
SHAPES: dict[str, Any] = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
POSITION = 512
"""Tokens before the timed forward."""

_WARM_UP, _IN_A_ROW = 1, 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--layers", type=int, default=4)
    add("--widths", type=int, nargs="+", default=[1, 5, 128])
    add("--dtypes", nargs="+", default=["float32", "bfloat16"])
    add("--texts", type=int, default=48)
    add_common(parser, rounds=7)


def run(options: argparse.Namespace) -> None:
    """Time forwards, measure drifts, and report."""
    forwards = [found for dtype in options.dtypes for found in forward_times(dtype, options)]
    drifts = drift_results(options.texts, options.dtypes)
    timed = [
        (
            f"{each['dtype']} {each['weights']}",
            each["bytes"],
            each["width"],
            str(Spread.stored(each["ms"], each["spread_ms"], options.rounds)),
            each["times_faster"],
        )
        for each in forwards
    ]
    keys = ("bytes", "mean_divergence", "max_divergence", "agreement", "perplexity", "reference_perplexity")
    changed = [(f"{each['dtype']} {each['weights']}", *(each[key] for key in keys)) for each in drifts]
    report = Report(
        benchmark="weights",
        question="What do weights in 8 and 4 bits save, and what do they cost?",
        settings={
            "layers": options.layers,
            "threads": options.threads,
            "batch": 1,
            "rounds": options.rounds,
        },
        tables=[
            Table(
                "Milliseconds of a forward, shapes of SmolLM2-135M",
                ("format", "bytes", "width", "ms", "times faster"),
                timed,
            ),
            Table(
                "Drift of the bundled target from its float32 weights, on held-out files",
                ("format", "bytes", "mean divergence", "max", "agreement", "perplexity", "reference"),
                changed,
            ),
        ],
        results={"forwards": forwards, "drifts": drifts},
    )
    finish(report, options.json)


def forward_times(dtype: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every format at every width."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPES, num_hidden_layers=options.layers)
    model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    shape: dict[str, Any] = {"max_length": 1024, "widths": options.widths, "spans": (1024,)}
    decoders = {
        weights or dtype: compile_decoder(
            model, dtype=dtype, weights=weights, target="cpu", threads=options.threads, **shape
        )
        for weights in FORMATS
    }
    results = []
    for width in options.widths:
        ids, cache_pos = torch.zeros(1, width, dtype=torch.int64), torch.tensor([POSITION])
        calls = [functools.partial(decoder.forward, ids, cache_pos) for decoder in decoders.values()]
        times = milliseconds_in_turns(calls, options.rounds, warm_up=_WARM_UP, in_a_row=_IN_A_ROW)
        results += [
            {
                "dtype": dtype,
                "weights": name,
                "width": width,
                "bytes": decoder.weights.bytes,
                "ms": statistics.median(spent),
                "spread_ms": [min(spent), max(spent)],
                "times_faster": median_ratio(times[0], spent),
            }
            for (name, decoder), spent in zip(decoders.items(), times, strict=True)
        ]
    return results


def drift_results(texts: int, dtypes: list[str]) -> list[dict[str, Any]]:
    """The drift of the bundled target from its float32 weights, in every format."""
    model = transformers.AutoModelForCausalLM.from_pretrained(pair_folder() / "target", dtype=torch.float32)
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
