"""
What a choice costs on the host, and what it costs within the forward.

Compiles the tail of a decoder, an embedding and a head over *vocab* tokens, once alone and once with a
chain and a selection behind it, with AOTInductor as ``compile_decoder(target="cpu")`` does.
Then, side by side, round after round: the forward followed by ``Choose`` on the host, against the
forward that chooses, noise and history included. What is left after taking away the plain forward
is what choosing takes. On a device the host's share also has the logits to bring over; here it does not.

    python benchmarks/fused.py [--vocab 32000 151936] [--batch 1] [--width 1 5] [--threads 1]
                               [--json FILE]
"""

import argparse
import pathlib
import statistics
from typing import Any

import torch
import transformers

from decodekit.bench.report import Report, Table, finish
from decodekit.decoding import Choose, Greedy, History, Sample, noise
from decodekit.decoding.protocols import Processor, Selection
from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.processors import MinP, RepetitionPenalty, Temperature, TopK, TopP
from processors import milliseconds

"""The first calls find the caches full of somebody else's numbers."""

LENGTH = 256

CASES: dict[str, tuple[Processor | None, Selection]] = {
    "greedy": (None, Greedy()),
    "penalty + T + top-k 50 + top-p 0.9 + min-p": (
        RepetitionPenalty(1.1) | Temperature(0.8) | TopK(50) | TopP(0.9) | MinP(0.02),
        Sample(seed=7),
    ),
    "T + top-p 0.9": (Temperature(0.8) | TopP(0.9), Sample(seed=7)),
}


def tail(vocab: int) -> Any:
    """A model of one narrow layer, so that the head and the choice are what is timed."""
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
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def measure(
    decoder: StaticDecoder, processors: Processor | None, selection: Selection, width: int, rounds: int
) -> list[float]:
    """Milliseconds a forward: alone, with the host's choice behind it, and choosing."""
    shape = decoder.shape
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(shape.vocab_size, (shape.batch_size, 1, shape.max_length + 1), generator=rng)
    length = (LENGTH - width + 1 + torch.arange(width)).repeat(shape.batch_size, 1)
    streams = noise.streams(torch.arange(shape.batch_size), 7)
    history = History(ids, length, torch.full((shape.batch_size,), 16), streams)
    fed = ids[:, 0, LENGTH - width : LENGTH].contiguous()
    start = torch.full((shape.batch_size,), LENGTH - width)
    choose = Choose(processors, selection)
    times = milliseconds(
        [
            lambda: decoder.forward(fed, start),
            lambda: choose(decoder.forward(fed, start), history),
            lambda: decoder.forward_choosing(fed, start, history),
        ],
        rounds,
    )
    return [statistics.median(spent) for spent in times]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 151_936])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--width", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    rows: list[tuple[Any, ...]] = []
    for vocab in args.vocab:
        for name, (processors, selection) in CASES.items():
            decoder = compile_decoder(
                tail(vocab),
                batch_size=args.batch,
                max_length=2 * LENGTH,
                widths=args.width,
                scored_width=max(args.width),
                spans=(2 * LENGTH,),
                processors=processors,
                selection=selection,
                target="cpu",
            )
            assert decoder.explain().on_device, str(decoder.explain())
            for width in args.width:
                plain, host, fused = measure(decoder, processors, selection, width, args.rounds)
                rows.append((name, vocab, width, plain, host, fused, host - plain, fused - plain))
    columns = ("chain", "vocabulary", "width", "forward", "forward + host", "choosing", "host", "fused")
    finish(
        Report(
            benchmark="fused",
            question="What does a choice cost on the host, and what within the forward?",
            settings={
                "batch": args.batch,
                "threads": args.threads,
                "tokens before": LENGTH,
                "rounds": args.rounds,
            },
            tables=[
                Table(
                    "Milliseconds a forward, medians; the last two without the plain forward", columns, rows
                )
            ],
            results=[dict(zip(columns, row, strict=True)) for row in rows],
        ),
        args.json,
    )


if __name__ == "__main__":
    main()
