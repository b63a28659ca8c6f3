"""
Question: what does sampling cost on the host, and what does it cost within the forward.

Compiles the tail of a decoder, an embedding and a head over the vocabulary, once alone and once with a
chain and a sampler behind it, with AOTInductor as ``compile_decoder(target="cpu")`` does. Then, in turns,
round after round: the plain forward, the forward followed by sampling on the host, and the forward that
samples, noise and history included. What exceeds the plain forward is the cost of sampling. On a device the
host would also have to copy the logits; here it does not.
"""

import argparse
import statistics
from typing import Any

import torch
import transformers

from ...decoding import Greedy, History, Sample, SamplingPipeline
from ...decoding.protocols import Processor, Sampler
from ...decoding.sampling import noise
from ...neuron_backend import compile_decoder
from ...neuron_backend.static_decoder import StaticDecoder
from ...processors import MinP, RepetitionPenalty, Temperature, TopK, TopP
from ..measuring.arguments import add_common
from ..measuring.report import Report, finish
from ..measuring.tables import Table
from ..measuring.timing import milliseconds_in_turns

LENGTH = 256
_WARM_UP, _IN_A_ROW = 5, 15

CASES: dict[str, tuple[Processor | None, Sampler]] = {
    "greedy": (None, Greedy()),
    "penalty + T + top-k 50 + top-p 0.9 + min-p": (
        RepetitionPenalty(1.1) | Temperature(0.8) | TopK(50) | TopP(0.9) | MinP(0.02),
        Sample(seed=7),
    ),
    "T + top-p 0.9": (Temperature(0.8) | TopP(0.9), Sample(seed=7)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--vocab", type=int, nargs="+", default=[32_000, 151_936])
    add("--batch", type=int, default=1)
    add("--width", type=int, nargs="+", default=[1])
    add_common(parser, rounds=5, threads=1)


def run(options: argparse.Namespace) -> None:
    """Time every case, and report."""
    torch.set_num_threads(options.threads)
    rows: list[tuple[Any, ...]] = []
    for vocab in options.vocab:
        for name, (processors, sampler) in CASES.items():
            decoder = compile_decoder(
                tail(vocab),
                batch_size=options.batch,
                max_length=2 * LENGTH,
                widths=options.width,
                scored_width=max(options.width),
                spans=(2 * LENGTH,),
                processors=processors,
                sampler=sampler,
                target="cpu",
            )
            assert decoder.explain().on_device, str(decoder.explain())
            for width in options.width:
                plain, host, fused = measure(decoder, processors, sampler, width, options.rounds)
                rows.append((name, vocab, width, plain, host, fused, host - plain, fused - plain))
    columns = ("chain", "vocabulary", "width", "forward", "forward + host", "sampling", "host", "fused")
    title = "Milliseconds a forward, medians; the last two without the plain forward"
    report = Report(
        benchmark="fused",
        question="What does sampling cost on the host, and what within the forward?",
        settings={
            "batch": options.batch,
            "threads": options.threads,
            "tokens before": LENGTH,
            "rounds": options.rounds,
        },
        tables=[Table(title, columns, rows)],
        results=[dict(zip(columns, row, strict=True)) for row in rows],
    )
    finish(report, options.json)


def tail(vocab: int) -> Any:
    """A model of one narrow layer, so that head and sampling dominate the time."""
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=2 * LENGTH,
        initializer_range=0.7,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]


def measure(
    decoder: StaticDecoder, processors: Processor | None, sampler: Sampler, width: int, rounds: int
) -> list[float]:
    """Milliseconds a forward: plain, followed by sampling on the host, and sampling itself."""
    shape = decoder.shape
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(shape.vocab_size, (shape.batch_size, 1, shape.max_length + 1), generator=rng)
    length = (LENGTH - width + 1 + torch.arange(width)).repeat(shape.batch_size, 1)
    random_streams = noise.random_streams(torch.arange(shape.batch_size), 7)
    history = History(ids, length, torch.full((shape.batch_size,), 16), random_streams)
    fed = ids[:, 0, LENGTH - width : LENGTH].contiguous()
    start = torch.full((shape.batch_size,), LENGTH - width)
    sample = SamplingPipeline(processors, sampler)
    times = milliseconds_in_turns(
        [
            lambda: decoder.forward(fed, start),
            lambda: sample(decoder.forward(fed, start), history),
            lambda: decoder.forward_and_sample(fed, start, history),
        ],
        rounds,
        warm_up=_WARM_UP,
        in_a_row=_IN_A_ROW,
    )
    return [statistics.median(spent) for spent in times]
