"""
Question: how fast are many requests served with one decoder, next to llama.cpp's server and transformers.

SmolLM2-135M-Instruct answers real prompts. First all requests come at once, which shows the tokens a second;
then they arrive at random, at a rate below that, which shows how long a request waits for its first token and
for each next one. The systems take turns, round after round. The batcher is called from threads of this
process, llama.cpp's server through HTTP.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from ...neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from ...neuron_backend.targets.registry import resolve
from ...neuron_backend.threads import on_threads
from ...pretrained import fetch_smollm2
from ..measuring.arguments import add_json, check_at_least, progress
from ..measuring.machine import backend_digest, machine_facts
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Table, number
from ..measuring.timing import median_ratio
from ..models.measured_model import decoder_settings, device_name
from ..prompts.prompt_sets import prompts
from .servers import (
    llama_server,
    serve_with_batcher,
    serve_with_llama,
    serve_with_transformers,
    version_of,
)
from .workload import Arrival, Served, arrivals

WIDTHS = (1, 5, 64)
_MAX_LENGTH = 512
_SIZES = f"w{'_'.join(map(str, WIDTHS))}-n{_MAX_LENGTH}"
_LOAD = 0.7
"""The rate of random arrivals, of the requests a second that the batcher serves when all come at once."""


@attrs.frozen
class Measured:
    """One system with one number of rows."""

    system: str
    rows: int
    rounds: tuple[Served, ...]
    """All requests at once, round by round."""

    random: Served | None = None
    """Requests that arrive at random."""

    @property
    def saturated(self) -> Served:
        """The round of the median tokens a second; of two in the middle the higher one."""
        return sorted(self.rounds, key=lambda each: each.tokens_per_second)[len(self.rounds) // 2]

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each round."""
        return [each.tokens_per_second for each in self.rounds]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--weights", choices=("int8", "int4"), help="how linear layers are stored (bfloat16)")
    add("--rows", type=int, nargs="+", default=[1, 4, 8, 16], metavar="N", help="(1 4 8 16)")
    add("--requests", type=int, default=40, metavar="N", help="in each run (%(default)s)")
    add("--rounds", type=int, default=3, metavar="N", help="with all requests at once (%(default)s)")
    add("--tokens", type=int, default=64, metavar="N", help="new tokens of a request (%(default)s)")
    add("--max-gap", type=float, default=0.1, metavar="S", help="the bound asked for (%(default)s s)")
    add("--llama-server", type=Path, metavar="FILE", help="the binary (none)")
    add("--llama-model", type=Path, metavar="FILE", help="its GGUF file, of the same number of bits")
    add("--transformers", action="store_true", help="measure generate_batch, in bfloat16")
    add("--target", default="cpu", metavar="NAME", help="as compile_decoder's (%(default)s)")
    add("--cache", type=Path, metavar="DIR", help="keeps the compiled decoders")
    add("--threads", type=int, default=2, metavar="N", help="(%(default)s)")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Measure each number of rows, and report."""
    check_at_least("requests", options.requests, 1)
    check_at_least("tokens", options.tokens, 1)
    check_at_least("rounds", options.rounds, 1)
    if (options.llama_server is None) != (options.llama_model is None):
        raise ValueError(
            "'llama_server' and 'llama_model' must be given together: "
            f"got {options.llama_server} and {options.llama_model}"
        )
    for name in ("llama_server", "llama_model"):
        file = getattr(options, name)
        if file is not None and not file.is_file():
            raise ValueError(f"{name!r} must be a file that is there: got {file}")
    if options.tokens > _MAX_LENGTH // 2:
        raise ValueError(
            f"'tokens' must be at most {_MAX_LENGTH // 2}, half of the positions, since prompts need room: "
            f"got {options.tokens}"
        )
    found: list[Measured] = []
    notes = [
        "Gap: from one answer of tokens to the next, a step's accepted draft tokens being one answer. "
        f"Random arrivals: a Poisson process at {_LOAD} of the requests a second that the batcher without "
        "drafts serves when all come at once, the same for all systems.",
    ]
    if options.llama_server is not None:
        notes.append(f"llama-server: {version_of(options.llama_server)}")
    decoder = None
    for rows in options.rows:
        progress(f"{rows} rows")
        decoder = _decoder(options, rows)
        found += measure(decoder, options)
    assert decoder is not None
    rate = None
    if options.transformers:
        progress("transformers' generate_batch")
        rate, note = _transformers_rate(decoder, options)
        notes.append(note)
    report = Report(
        benchmark="serving",
        question="How fast are many requests served with one decoder?",
        settings={
            "model": "SmolLM2-135M-Instruct",
            "requests": options.requests,
            "tokens": options.tokens,
            "rounds": options.rounds,
            "max gap": f"{options.max_gap} s",
            **decoder_settings(decoder),
        },
        tables=_tables(found, rate),
        thresholds=goals(found, rate, options.max_gap),
        notes=notes,
        results=[attrs.asdict(each) for each in found],
        machine=machine_facts(device_name(decoder)),
    )
    finish(report, options.json)


def measure(decoder: CompiledDecoder, options: argparse.Namespace) -> list[Measured]:
    """The systems with the rows of *decoder*, which take turns."""
    rows, ids = decoder.shape.batch_size, _prompts(decoder, options)

    def batcher(requests: Sequence[Arrival], drafts: bool) -> Served:
        gap = options.max_gap
        return Served.of(serve_with_batcher(decoder, requests, options.tokens, drafts=drafts, max_gap=gap))

    systems: dict[str, Callable[[Sequence[Arrival]], Served]] = {
        "decodekit": partial(batcher, drafts=False),
        "decodekit, drafts by lookup": partial(batcher, drafts=True),
    }
    if options.llama_server is not None:

        def server(requests: Sequence[Arrival]) -> Served:
            length, threads = decoder.shape.max_length, options.threads
            # A new one each time: it would keep the prompts.
            with llama_server(options.llama_server, options.llama_model, rows, length, threads) as address:
                serve_with_llama(address, [Arrival(0.0, (1,))], 2)
                return Served.of(serve_with_llama(address, requests, options.tokens))

        systems["llama-server"] = server
    at_once = arrivals(ids, None, seed=rows)
    batcher(at_once[: min(2, len(at_once))], drafts=True)
    rounds = [{name: serve(at_once) for name, serve in systems.items()} for _ in range(options.rounds)]
    plain = statistics.median(each["decodekit"].tokens_per_second for each in rounds)
    spread = arrivals(ids, _LOAD * plain / options.tokens, seed=rows)
    return [
        Measured(name, rows, tuple(each[name] for each in rounds), serve(spread))
        for name, serve in systems.items()
    ]


def goals(found: Sequence[Measured], transformers: float | None, max_gap: float) -> list[Threshold]:
    """The goals, of what was measured."""
    ours = {each.rows: each for each in found if each.system == "decodekit"}
    drafted = {each.rows: each for each in found if each.system.startswith("decodekit,")}
    theirs = {each.rows: each for each in found if each.system == "llama-server"}
    result = [
        Threshold(
            f"tokens a second of llama-server's, {rows} rows",
            median_ratio(ours[rows].rates, each.rates),
            ">=",
            1.0,
            "×",
        )
        for rows, each in theirs.items()
    ]
    if 1 in ours and 8 in ours:
        ratio = ours[8].saturated.tokens_per_second / ours[1].saturated.tokens_per_second
        result.append(Threshold("8 rows, of one row's tokens a second", ratio, ">=", 3.0, "×"))
    if transformers is not None:
        best = max(each.saturated.tokens_per_second for each in ours.values())
        result.append(Threshold("tokens a second of generate_batch's", best / transformers, ">=", 3.0, "×"))
    for rows, each in ours.items():
        for name, one in (("", each), (", drafts", drafted[rows])):
            if one.random is not None:
                share = one.random.gap[2] / (1e3 * max_gap)
                result.append(
                    Threshold(f"99th percentile of the gap, {rows} rows{name}", share, "<=", 1.5, "×")
                )
    return result


def _tables(found: Sequence[Measured], transformers: float | None) -> list[Table]:
    saturated: list[tuple[Any, ...]] = [
        (each.system, each.rows, number(each.saturated.tokens_per_second), *_times(each.saturated))
        for each in found
    ]
    if transformers is not None:
        saturated.append(("transformers generate_batch", None, number(transformers), None, None))
    random = [
        (each.system, each.rows, number(each.random.tokens_per_second), *_times(each.random))
        for each in found
        if each.random is not None
    ]
    columns = ("system", "rows", "tokens/s", "ms to the first token, p50/95/99", "ms of a gap, p50/95/99")
    return [
        Table("All requests at once", columns, saturated),
        Table("Requests that arrive at random", columns, random),
    ]


def _times(served: Served) -> tuple[str, str]:
    first, gap = ("/".join(map(number, each)) for each in (served.first, served.gap))
    return first, gap


def _prompts(decoder: CompiledDecoder, options: argparse.Namespace) -> list[list[int]]:
    """The ids of as many real prompts as there are requests, each at most as long as there is room."""
    tokenizer: Any = decoder.tokenizer
    room = decoder.shape.max_length - options.tokens - 1
    texts = [text for _, text in prompts()]
    found = []
    for request in range(options.requests):
        chat = [{"role": "user", "content": texts[request % len(texts)]}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        found.append(ids[:room])
    return found


def _transformers_rate(decoder: CompiledDecoder, options: argparse.Namespace) -> tuple[float | None, str]:
    from ...neuron_backend.serialization.saved_model import load_model

    model = load_model(fetch_smollm2(), dtype=_dtype())
    requests = arrivals(_prompts(decoder, options), None, seed=0)
    try:
        with on_threads(options.threads):
            rates = serve_with_transformers(model, requests, options.tokens, options.rounds)
    except Exception as error:
        return None, f"transformers' generate_batch does not run here: {error!r}"
    return statistics.median(
        rates
    ), "transformers' generate_batch decodes as many requests together as it finds room for."


def _dtype() -> Any:
    import torch

    return torch.bfloat16


def _decoder(options: argparse.Namespace, rows: int) -> CompiledDecoder:
    folder = None
    if options.cache is not None:
        folder = (
            options.cache
            / f"serving-{resolve(options.target).name}-{options.weights}-{rows}-{_SIZES}-{backend_digest()}"
        )
    if folder is not None and folder.exists():
        decoder = load_decoder(folder)
    else:
        decoder = compile_decoder(
            fetch_smollm2(),
            batch_size=rows,
            max_length=_MAX_LENGTH,
            widths=WIDTHS,
            dtype="bfloat16",
            weights=options.weights,
            target=options.target,
        )
        if folder is not None:
            decoder.save(folder)
    decoder.threads = options.threads
    return decoder
