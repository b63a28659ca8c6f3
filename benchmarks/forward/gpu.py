"""
Question: how near does a decoder on a GPU come to the limit of its memory bandwidth, and what do other
programs take.

Random weights of Llama-2-7B's shape; nothing is downloaded. Four parts, in one run:

decode   Milliseconds a token at batch 1: target "cuda", transformers with its static cache and
         torch.compile, and a plain loop; and the time in which the memory delivers the weights, by a large
         copy and a large sum measured in the same run.
choice   The share of sampling (chain and sampler) in a step, at a vocabulary of 128,256 and batch 64.
batch    Milliseconds a step and tokens a second, batch 1 to 256.
context  The same at batch 1, with 128 to 8,192 tokens before.

Compiling takes some minutes. The first part holds the weights three times, once for each program: some 45 GB.
A batch or context that the GPU's memory does not hold is named and left out.
"""

import argparse
import json
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from ...decoding.whole_file import write_whole
from ...neuron_backend import CudaTarget
from ...neuron_backend.models.weights import weight_dtype
from ..measuring.arguments import check_at_least
from .gpu_steps import (
    CHAIN,
    Setting,
    bandwidth,
    graph_step,
    logits_step,
    peer_steps,
    random_model,
    sampling_decoder,
    sampling_step,
    seconds_in_turns,
)

LLAMA_2_7B = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 16_384,
}
WIDE_VOCABULARY = 128_256
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
PARTS = ("decode", "choice", "batch", "context")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add("--layers", type=int)
    add("--dtype", default="bfloat16")
    add("--weights", choices=("int8", "int4", "float8"))
    add("--rounds", type=int, default=5)
    add("--backend", default="inductor", help="of torch.compile, for the peers (%(default)s)")
    add("--small", action="store_true", help="scaled down, to test that it runs")
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    add("--plot", type=Path, metavar="FILE", help="plot batch and context (needs matplotlib)")


def run(options: argparse.Namespace) -> None:
    """Measure on this machine's GPU, and print."""
    measure(options)


def measure(options: argparse.Namespace, target: CudaTarget | None = None) -> dict[str, Any]:
    """
    Measure the parts on *target* (this machine's GPU), and print; all results.

    Raises:
        ValueError: A number of *options* is too small.

        SystemExit: There is no GPU.
    """
    check_at_least("rounds", options.rounds, 1)
    if options.layers is not None:
        check_at_least("layers", options.layers, 1)
    target = CudaTarget() if target is None else target
    lack = target.runtime.lack()
    if lack is not None:
        raise SystemExit(f"this benchmark needs a CUDA GPU: got {lack}")
    setting = setting_of(
        target,
        dtype=options.dtype,
        weights=options.weights,
        layers=options.layers,
        rounds=options.rounds,
        backend=options.backend,
        small=options.small,
    )
    gpu = target.runtime.gpu(setting.device)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, CUDA {gpu.cuda}"
    layers, weights = setting.shape["num_hidden_layers"], options.weights or "as they are"
    print(f"{gpu.name}, capability {gpu.capability}, {versions}, Python {platform.python_version()},")
    print(f"{layers} layers, {options.dtype}, weights {weights},")
    print(f"medians of {options.rounds} rounds of {setting.in_a_row} steps that take turns")
    parts: dict[str, Callable[[], Any]] = {
        "decode": lambda: decode(setting),
        "choice": lambda: choice(setting),
        "batch": lambda: sweep(setting, "batch", [(size, setting.positions) for size in setting.batches]),
        "context": lambda: sweep(setting, "context", [(1, positions) for positions in setting.contexts]),
    }
    results: dict[str, Any] = {"device": gpu.name, "versions": versions, "shape": setting.shape}
    for part in options.parts:
        results[part] = parts[part]()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.json, f"{json.dumps(results, indent=2)}\n".encode())
    if options.plot:
        plot(results, options.plot)
    return results


def setting_of(
    target: CudaTarget,
    *,
    dtype: str,
    weights: str | None = None,
    layers: int | None = None,
    rounds: int = 5,
    backend: str = "inductor",
    small: bool = False,
) -> Setting:
    """The full size, or a *small* one for tests."""
    return Setting(
        target=target,
        device=target.runtime.device(target.device),
        dtype=weight_dtype(dtype) or torch.bfloat16,
        weights=weights,
        shape=LLAMA_2_7B | (SMALL if small else {}) | ({"num_hidden_layers": layers} if layers else {}),
        positions=16 if small else 512,
        in_a_row=2 if small else 20,
        rounds=rounds,
        backend=backend,
        probe_bytes=2**20 if small else 2**32,
        sampling_batch=4 if small else 64,
        batches=(1, 4) if small else (1, 2, 4, 8, 16, 32, 64, 128, 256),
        contexts=(16, 32) if small else (128, 256, 512, 1024, 2048, 4096, 8192),
    )


def decode(setting: Setting) -> dict[str, Any]:
    """A token at batch 1, beside the peers and the limit of the memory."""
    model, positions = random_model(setting), setting.positions
    decoder = sampling_decoder(setting, model, 1, positions)
    times = medians(
        setting,
        {
            "decodekit, sampling": sampling_step(decoder, positions),
            "decodekit, logits to the host": logits_step(decoder, positions),
            "decodekit, the graph alone": graph_step(setting, decoder),
            **peer_steps(setting, model, positions),
        },
    )
    read = decoder.weights.bytes - model.get_input_embeddings().weight.nbytes
    read += sum(buffer.nbytes for buffer in decoder.cache.states)
    limits = bandwidth(setting)
    limit = read / max(limits.values())
    print(f"\ndecode: batch 1, {positions} tokens before, {read / 2**30:.2f} GiB read a token")
    print("  memory: " + ", ".join(f"{name} {rate / 1e9:.0f} GB/s" for name, rate in limits.items()))
    print(f"  {'limit':34} {1e3 * limit:9.3f} ms")
    for name, spent in times.items():
        print(f"  {name:34} {1e3 * spent:9.3f} ms   {limit / spent:6.1%} of the limit")
    return {"bytes": read, "bandwidth": limits, "limit": limit, "seconds": times}


def choice(setting: Setting) -> dict[str, Any]:
    """The share of sampling in a step."""
    model = random_model(setting, vocab_size=min(WIDE_VOCABULARY, 4 * setting.shape["vocab_size"] + 256))
    decoder = sampling_decoder(setting, model, setting.sampling_batch, setting.positions)
    times = medians(
        setting,
        {"sampling": sampling_step(decoder, setting.positions), "graph alone": graph_step(setting, decoder)},
    )
    share = 1 - times["graph alone"] / times["sampling"]
    print(f"\nchoice: vocabulary {decoder.shape.vocab_size:,}, batch {decoder.shape.batch_size}, {CHAIN!r}")
    print("  " + ", ".join(f"{name} {1e3 * spent:.3f} ms" for name, spent in times.items()))
    print(f"  chain, sampler, noise and copies: {share:.1%} of a step")
    return {"seconds": times, "share": share}


def sweep(setting: Setting, name: str, sizes: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Steps of *sizes*: batch, and tokens before."""
    print(f"\n{name}:    batch  context   ms a step   tokens/s")
    model, rows = random_model(setting), []
    for batch_size, positions in sizes:
        try:
            decoder = sampling_decoder(setting, model, batch_size, positions)
        except torch.OutOfMemoryError:
            print(f"  {batch_size:13} {positions:8}   more than the memory holds")
            continue
        median = medians(setting, {"step": sampling_step(decoder, positions)})["step"]
        print(f"  {batch_size:13} {positions:8} {1e3 * median:11.3f} {batch_size / median:10.1f}", flush=True)
        rows.append({"batch": batch_size, "context": positions, "seconds": median})
        del decoder
    return rows


def medians(setting: Setting, runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median seconds of each run."""
    return {name: statistics.median(spent) for name, spent in seconds_in_turns(setting, runs).items()}


def plot(results: dict[str, Any], file: Path) -> None:
    """Plot the curves of both sweeps."""
    # Not through pyplot, which would choose a window system.
    from matplotlib.figure import Figure

    shown = [name for name in ("batch", "context") if results.get(name)]
    figure = Figure(figsize=(5 * max(len(shown), 1), 4))
    axes = figure.subplots(1, max(len(shown), 1), squeeze=False)
    for name, axis in zip(shown, axes[0], strict=False):
        rows = results[name]
        axis.plot([row[name] for row in rows], [1e3 * row["seconds"] for row in rows], marker="o")
        axis.set_xscale("log", base=2)
        axis.set_xlabel({"batch": "rows", "context": "tokens before"}[name])
        axis.set_ylabel("ms a step")
        axis.set_ylim(bottom=0)
        axis.set_title(results["device"])
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
