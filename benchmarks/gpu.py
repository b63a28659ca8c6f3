"""
Question: how near does a decoder on a GPU come to what its memory allows, and what do others take.

Random weights of Llama-2-7B's shape; nothing is downloaded. Four parts, in one run:

decode   Milliseconds a token at batch 1: target "cuda", transformers with its static cache and
         ``torch.compile``, and a plain loop (plain_llama.py); and how long the memory takes to deliver the
         weights, by a large copy and a large sum measured in the same run.
choice   Which share of a step a chain and a sampler take, at a vocabulary of 128,256 and batch 64.
batch    Milliseconds a step and tokens a second, batch 1 to 256.
context  The same at batch 1, with 128 to 8,192 tokens before.

    python benchmarks/gpu.py [--parts decode choice batch context] [--layers 32] [--dtype bfloat16]
                             [--weights int8] [--rounds 5] [--json FILE] [--plot FILE]

Compiling takes some minutes. The first part holds the weights three times, one for each who takes part:
some 45 GB. A batch or context that the GPU's memory does not hold is named, and left out.
"""

import argparse
import copy
import json
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
import transformers
from plain_llama import PlainLlama

from decodekit.decoding import History, Sample
from decodekit.decoding.sampling import noise
from decodekit.neuron_backend import CudaTarget, StaticDecoder
from decodekit.neuron_backend.kv_cache.shapes import decoder_shape
from decodekit.neuron_backend.models.weights import copy_sharing_weights
from decodekit.neuron_backend.quantization.quantized import quantize
from decodekit.processors import RepetitionPenalty, Temperature, TopK, TopP

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
CHAIN = RepetitionPenalty(1.1) | Temperature(0.8) | TopK(50) | TopP(0.95)
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}

# Filled with, again and again: drawing billions of numbers takes longer than all else.
_TILE = 2**20


@attrs.frozen
class Setting:
    """What is measured, and on what."""

    target: CudaTarget
    device: torch.device
    dtype: torch.dtype
    weights: str | None
    shape: dict[str, int]
    positions: int
    """Tokens before a step that is timed."""

    in_a_row: int
    rounds: int
    backend: str
    """What compiles the others."""

    probe_bytes: int
    choice_batch: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]

    def wait(self) -> None:
        """For all that the device was given."""
        self.target.runtime.wait(self.device)


def random_model(setting: Setting, **changes: int) -> Any:
    """A Llama on the host."""
    config = transformers.LlamaConfig(**{**setting.shape, **changes}, bos_token_id=None, eos_token_id=None)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=setting.dtype)
    generator = torch.Generator().manual_seed(0)
    tile = (0.02 * torch.randn(_TILE, generator=generator)).to(setting.dtype)
    rotary = type(model.model.rotary_emb)(config=config)
    model = model.to_empty(device="cpu").eval()
    model.model.rotary_emb = rotary
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            flat = parameter.view(-1)
            for start in range(0, len(flat), _TILE):
                flat[start : start + _TILE] = tile[: len(flat) - start]
            if "norm" in name:
                parameter.fill_(1)
    return model


def made(setting: Setting, model: Any, batch_size: int, positions: int, choosing: bool) -> StaticDecoder:
    """A decoder of one width and one span, over a model that need not be compared: its weights are random."""
    model = copy_sharing_weights(model)
    if setting.weights is not None:
        quantize(model, setting.weights)
    length = positions + 8
    shape = decoder_shape(
        model, vocab_size=model.config.vocab_size, batch_size=batch_size, max_length=length, widths=(1,)
    )
    decoder = StaticDecoder.unchecked(model, shape, spans=(length,))
    if choosing:
        decoder.fuse(CHAIN, Sample(seed=7))
        assert decoder.fusion is not None
    setting.target.record(decoder)
    return decoder


def seconds(setting: Setting, runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Of a call, one number a round, warm; the runs take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(setting.rounds):
        for name, run in runs.items():
            setting.wait()
            start = time.perf_counter()
            for _ in range(setting.in_a_row):
                run()
            setting.wait()
            times[name].append((time.perf_counter() - start) / setting.in_a_row)
    return times


def bandwidth(setting: Setting) -> dict[str, float]:
    """Bytes a second that the memory delivers: of a copy, read and written; and of a sum, read."""
    source = torch.ones(setting.probe_bytes // 4, device=setting.device)
    there = torch.empty_like(source)
    times = seconds(setting, {"copy": lambda: there.copy_(source), "read": lambda: source.sum()})
    moved = {"copy": 2 * source.nbytes, "read": source.nbytes}
    return {name: moved[name] / min(spent) for name, spent in times.items()}


def others(setting: Setting, model: Any, positions: int) -> dict[str, Callable[[], Any]]:
    """A step of transformers, and one of the plain loop; both keep the token on the device."""
    # A module moves its parameters in place, and these are others' too.
    there = copy.deepcopy(model).to(setting.device)
    ids = torch.ones(1, 1, dtype=torch.int64, device=setting.device)
    position = torch.tensor([positions], device=setting.device)
    cache = transformers.StaticCache(config=there.config, max_cache_len=positions + 8)
    plain = PlainLlama(there, 1, positions + 8)
    options = {"mode": "reduce-overhead"} if setting.backend == "inductor" else {"backend": setting.backend}

    def stock(ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        output = there(
            input_ids=ids,
            position_ids=position[None],
            cache_position=position,
            past_key_values=cache,
            use_cache=True,
        )
        likeliest: torch.Tensor = output.logits[:, -1].argmax(dim=-1, keepdim=True)
        return likeliest

    # Its layers make their buffers at the first forward, which is not to be compiled.
    with torch.no_grad():
        stock(ids, position)
    steps = {"transformers, static cache": stock, "plain loop": plain.step}
    compiled = {name: torch.compile(step, fullgraph=True, **options) for name, step in steps.items()}

    def run(step: Callable[..., Any]) -> Callable[[], Any]:
        @torch.no_grad()
        def once() -> torch.Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            return step(ids, position)

        return once

    return {name: run(step) for name, step in compiled.items()}


def forward(decoder: StaticDecoder, positions: int) -> Callable[[], Any]:
    """A step, with its logits on the host."""
    batch_size = decoder.shape.batch_size
    ids, start = torch.ones(batch_size, 1, dtype=torch.int64), torch.full((batch_size,), positions)
    return lambda: decoder.forward(ids, start)


def choosing(decoder: StaticDecoder, positions: int) -> Callable[[], Any]:
    """A step, with its tokens on the host; noise and history are part of it."""
    shape = decoder.shape
    generator = torch.Generator().manual_seed(1)
    written = torch.randint(
        shape.vocab_size, (shape.batch_size, 1, shape.max_length + 1), generator=generator
    )
    length = torch.full((shape.batch_size, 1), positions + 1)
    random_streams = noise.random_streams(torch.arange(shape.batch_size), 7)
    history = History(written, length, torch.full((shape.batch_size,), 1), random_streams)
    ids = written[:, 0, positions : positions + 1].contiguous()
    start = torch.full((shape.batch_size,), positions)
    return lambda: decoder.forward_and_sample(ids, start, history)


def replay(setting: Setting, decoder: StaticDecoder) -> Callable[[], Any]:
    """The recorded step alone, nothing copied."""
    program: Any = decoder.programs[1]
    (recorded,) = program.replays.values()

    def once() -> None:
        recorded()
        setting.wait()

    return once


def decode(setting: Setting) -> dict[str, Any]:
    """Part one."""
    model, positions = random_model(setting), setting.positions
    decoder = made(setting, model, 1, positions, choosing=True)
    runs = {
        "decodekit, choosing": choosing(decoder, positions),
        "decodekit, logits to the host": forward(decoder, positions),
        "decodekit, the graph alone": replay(setting, decoder),
        **others(setting, model, positions),
    }
    times = {name: statistics.median(spent) for name, spent in seconds(setting, runs).items()}
    read = decoder.weights.bytes - model.get_input_embeddings().weight.nbytes
    read += sum(buffer.nbytes for buffer in decoder.cache.tensors)
    limits = bandwidth(setting)
    limit = read / max(limits.values())
    print(f"\ndecode: batch 1, {positions} tokens before, {read / 2**30:.2f} GiB read a token")
    print("  memory: " + ", ".join(f"{name} {rate / 1e9:.0f} GB/s" for name, rate in limits.items()))
    print(f"  {'its limit':34} {1e3 * limit:9.3f} ms")
    for name, spent in times.items():
        print(f"  {name:34} {1e3 * spent:9.3f} ms   {limit / spent:6.1%} of the limit")
    return {"bytes": read, "bandwidth": limits, "limit": limit, "seconds": times}


def choice(setting: Setting) -> dict[str, Any]:
    """Part two."""
    model = random_model(setting, vocab_size=min(WIDE_VOCABULARY, 4 * setting.shape["vocab_size"] + 256))
    decoder = made(setting, model, setting.choice_batch, setting.positions, choosing=True)
    runs = {
        "choosing": choosing(decoder, setting.positions),
        "graph alone": replay(setting, decoder),
    }
    times = {name: statistics.median(spent) for name, spent in seconds(setting, runs).items()}
    share = 1 - times["graph alone"] / times["choosing"]
    print(f"\nchoice: vocabulary {decoder.shape.vocab_size:,}, batch {decoder.shape.batch_size}, {CHAIN!r}")
    print("  " + ", ".join(f"{name} {1e3 * spent:.3f} ms" for name, spent in times.items()))
    print(f"  chain, sampler, noise and copies: {share:.1%} of a step")
    return {"seconds": times, "share": share}


def sweep(setting: Setting, name: str, sizes: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Parts three and four: steps of a batch, with so many tokens before."""
    print(f"\n{name}:    batch  context   ms a step   tokens/s")
    model, rows = random_model(setting), []
    for batch_size, positions in sizes:
        try:
            decoder = made(setting, model, batch_size, positions, choosing=True)
        except torch.OutOfMemoryError:
            print(f"  {batch_size:13} {positions:8}   more than the memory holds")
            continue
        (spent,) = seconds(setting, {"step": choosing(decoder, positions)}).values()
        middle = statistics.median(spent)
        print(f"  {batch_size:13} {positions:8} {1e3 * middle:11.3f} {batch_size / middle:10.1f}", flush=True)
        rows.append({"batch": batch_size, "context": positions, "seconds": middle})
        del decoder
    return rows


def plot(results: dict[str, Any], file: str) -> None:
    """The curves of both sweeps."""
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
    figure.savefig(file)


def setting_of(args: argparse.Namespace, target: CudaTarget) -> Setting:
    """Full size, or with ``--small`` one that a test can wait for."""
    device = target.runtime.device(target.device, False)
    small = args.small
    return Setting(
        target=target,
        device=device,
        dtype=getattr(torch, args.dtype),
        weights=args.weights,
        shape=LLAMA_2_7B
        | ({**SMALL, "vocab_size": 512} if small else {})
        | ({"num_hidden_layers": args.layers} if args.layers else {}),
        positions=16 if small else 512,
        in_a_row=2 if small else 20,
        rounds=args.rounds,
        backend=args.backend,
        probe_bytes=2**20 if small else 2**32,
        choice_batch=4 if small else 64,
        batches=(1, 4) if small else (1, 2, 4, 8, 16, 32, 64, 128, 256),
        contexts=(16, 32) if small else (128, 256, 512, 1024, 2048, 4096, 8192),
    )


def main(arguments: Sequence[str] | None = None, target: CudaTarget | None = None) -> dict[str, Any]:
    parts = ("decode", "choice", "batch", "context")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--weights", choices=("int8", "int4", "float8"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="inductor", help="what compiles the others")
    parser.add_argument("--small", action="store_true", help="scaled down, to see that it runs")
    parser.add_argument("--json")
    parser.add_argument("--plot")
    args = parser.parse_args(arguments)

    target = CudaTarget() if target is None else target
    lack = target.runtime.lack()
    if lack is not None:
        raise SystemExit(f"this benchmark needs a CUDA GPU: got {lack}")
    setting = setting_of(args, target)
    gpu = target.runtime.gpu(setting.device)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, CUDA {gpu.cuda}"
    print(f"{gpu.name}, capability {gpu.capability}, {versions}, Python {platform.python_version()},")
    print(
        f"{setting.shape['num_hidden_layers']} layers, {args.dtype}, weights {args.weights or 'as they are'},"
    )
    print(f"medians of {args.rounds} rounds of {setting.in_a_row} steps that take turns")
    runs: dict[str, Callable[[], Any]] = {
        "decode": lambda: decode(setting),
        "choice": lambda: choice(setting),
        "batch": lambda: sweep(setting, "batch", [(size, setting.positions) for size in setting.batches]),
        "context": lambda: sweep(setting, "context", [(1, positions) for positions in setting.contexts]),
    }
    results: dict[str, Any] = {"device": gpu.name, "versions": versions, "shape": setting.shape}
    for part in args.parts:
        results[part] = runs[part]()
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=2) + "\n")
    if args.plot:
        plot(results, args.plot)
    return results


if __name__ == "__main__":
    main()
