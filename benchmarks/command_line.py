"""``python -m decodekit bench``: the table of all benchmarks, imported when one is run."""

import argparse
import importlib
from collections.abc import Iterator
from typing import Any

import attrs


@attrs.frozen
class Benchmark:
    """A benchmark by name."""

    name: str
    module: str
    """Relative to this package; it has ``add_arguments(parser)`` and ``run(options)``."""

    help: str

    def parser(self) -> argparse.ArgumentParser:
        """The parser of its arguments; imports the module."""
        module = importlib.import_module(self.module, __package__)
        parser = argparse.ArgumentParser(
            prog=f"decodekit bench {self.name}",
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(parser)
        parser.set_defaults(run=module.run)
        return parser


GROUPS = {
    "Whole generations": (
        Benchmark("decode", ".comparison.decode", "a token and a prompt, next to transformers and llama.cpp"),
        Benchmark("latency", ".generation.latency", "seconds to reach 1,024 tokens"),
        Benchmark("throughput", ".generation.throughput", "tokens a second by lengths of prompt and answer"),
        Benchmark("serving", ".serving.requests", "many requests at once, next to llama-server"),
        Benchmark("first-hour", ".generation.first_hour", "from an empty folder to text of a real model"),
        Benchmark("start", ".generation.start", "import, and the first token of a saved decoder"),
        Benchmark(
            "compile-time", ".generation.compile_time", "compiling by format, and with twice the layers"
        ),
    ),
    "One forward": (
        Benchmark("positions", ".forward.positions", "a token by its position in the cache"),
        Benchmark("padding", ".forward.padding", "forwards that are mostly padding, next to tokens alone"),
        Benchmark("columns", ".forward.columns", "several columns and several rows, next to one"),
        Benchmark("busy", ".forward.busy_machine", "a token beside busy processes, next to a quiet machine"),
        Benchmark("products", ".forward.products", "matrix products by number of rows, by kernel"),
        Benchmark("weights", ".forward.weights", "weights in 8 and 4 bits: speed and drift"),
        Benchmark("fused", ".forward.fused_sampling", "sampling within the forward, next to the host"),
        Benchmark("gpu", ".forward.gpu", "a CUDA GPU: token, sampling, batch, context"),
    ),
    "The host": (
        Benchmark("host", ".host.token_cost", "a token's cost on the host, next to transformers"),
        Benchmark("processors", ".host.processors", "chain and sampler, next to transformers"),
        Benchmark("streaming", ".host.streaming", "from a token's sampling to its text at the consumer"),
    ),
    "Speculation": (
        Benchmark("speculation", ".speculation.speed", "decoding with a draft, next to transformers"),
        Benchmark("real-prompts", ".speculation.real_prompts", "forty real prompts, next to plain decoding"),
        Benchmark("acceptance", ".speculation.acceptance", "agreement of the bundled draft with its target"),
    ),
    "All of them": (
        Benchmark("report", ".page", "run the benchmarks, and write docs/benchmarks.md in a checkout"),
    ),
}


def benchmark_named(name: str) -> Benchmark:
    """The benchmark called *name*, one of :data:`GROUPS`."""
    return next(each for group in GROUPS.values() for each in group if each.name == name)


def add_bench(commands: Any) -> None:
    """Add ``bench`` to the *commands* of a parser."""
    bench = commands.add_parser(
        "bench",
        help="measure",
        usage="%(prog)s [-h] NAME [OPTION ...]",
        description="\n".join(_listing()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [each.name for group in GROUPS.values() for each in group]
    bench.add_argument("name", nargs="?", choices=names, metavar="NAME", help="the benchmark")
    bench.add_argument("options", nargs=argparse.REMAINDER, metavar="OPTION", help="see NAME --help")
    bench.set_defaults(command=lambda options: _bench(options, bench))


def _bench(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if options.name is None:
        parser.print_help()
        return 0
    chosen = benchmark_named(options.name).parser().parse_args(options.options)
    status: int | None = chosen.run(chosen)
    return status or 0


def _listing() -> Iterator[str]:
    yield "Benchmarks. Each prints tables and goals, and writes all measurements as JSON with --json FILE."
    for title, group in GROUPS.items():
        yield f"\n{title}:"
        yield from (f"  {each.name:12} {each.help}" for each in group)
