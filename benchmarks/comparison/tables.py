"""What a comparison of contenders says: tables, goals, who was absent."""

import statistics
from collections.abc import Sequence

import attrs

from .decode import LLAMA_CPP, OURS, TRANSFORMERS, Compared, Taken
from .machine import versions
from .report import Bar, Report, Spread, Table

QUESTION = (
    "How long does a token take, and a prompt, next to transformers and llama.cpp with the same weights?"
)

_PEERS = {16: ("BF16",), 8: ("Q8_0",), 4: ("Q4_0",)}
"""Of equal bits, by whom we are judged."""


def report(found: Compared) -> Report:
    """Everything in one."""
    comparison = found.comparison
    peers = {f"{each.entry.who}": each.facts["version"] for each in found.taken if "version" in each.facts}
    return Report(
        benchmark="decode",
        question=QUESTION,
        settings={
            "shape": str(comparison.shape),
            "batch": 1,
            "threads": comparison.threads,
            "prompts": comparison.prompts,
            "tokens": comparison.tokens,
            "rounds": comparison.rounds,
            "target": comparison.target,
            "widths": comparison.widths,
        },
        tables=[_times(found), _functions(found)],
        bars=bars(found),
        notes=_notes(found),
        # Where files lie on this machine is nobody's business.
        results=attrs.asdict(
            attrs.evolve(found, comparison=attrs.evolve(comparison, folder=None, peer_python=""))
        ),
        versions=versions() | peers,
    )


def bars(found: Compared) -> list[Bar]:
    """What is held against llama.cpp at equal bits, transformers at its best, and the memory."""
    lengths = found.comparison.prompts
    judged = []
    for bits, formats in _PEERS.items():
        ours = _best(_of(found, OURS, bits))
        theirs = [each for each in _of(found, LLAMA_CPP, bits) if each.entry.format in formats]
        if ours is None or not theirs:
            continue
        names = f"{ours.entry.format} against llama.cpp {theirs[0].entry.format}"
        judged.append(
            Bar(f"ms per token, {names}", _ratio(ours.token_ms, theirs[0].token_ms), "<=", 1.0, "×")
        )
        judged += [
            Bar(
                f"prompt of {length}, {names}",
                _ratio(ours.prompt_ms[length], theirs[0].prompt_ms[length]),
                "<=",
                1.2,
                "×",
            )
            for length in lengths
        ]
    ours = _best(_of(found, OURS, 16) + _of(found, OURS, 32))
    theirs_best = _best([each for each in found.taken if each.entry.who == TRANSFORMERS])
    if ours is not None and theirs_best is not None:
        what = f"times faster a token, {ours.entry.format} against transformers {theirs_best.entry.format}"
        judged.append(Bar(what, _ratio(theirs_best.token_ms, ours.token_ms), ">=", 2.0, "×"))
    for each in found.taken:
        if each.entry.who == OURS and (each.entry.format == "float16" or each.entry.bits == 8):
            what = f"share of the memory's limit, {each.entry.format}"
            judged.append(Bar(what, 100 * _share(found, each), ">=", 60.0, " %"))
    return judged


def _times(found: Compared) -> Table:
    lengths = found.comparison.prompts
    rows = [
        (
            each.entry.name,
            each.entry.bits,
            str(Spread.of(each.token_ms)),
            *(str(Spread.of(each.prompt_ms[length])) for length in lengths),
            each.read_bytes / 1e6,
            f"{100 * _share(found, each):.0f} %",
        )
        for each in found.taken
    ]
    columns = ("contender", "bits", "ms per token", *(f"ms, prompt of {n}" for n in lengths))
    return Table(
        "Medians (lowest–highest) of the rounds", (*columns, "MB read a token", "of the memory's limit"), rows
    )


def _functions(found: Compared) -> Table:
    rows = [
        (each.entry.name, each.divergence, f"{100 * each.agreement:.0f} %", each.same_tokens)
        for each in found.taken
    ]
    columns = (
        "contender",
        "divergence (nats a token)",
        "same likeliest token",
        f"same leading tokens of {found.comparison.tokens}",
    )
    return Table("What they compute, held against transformers in float32, weights random", columns, rows)


def _notes(found: Compared) -> list[str]:
    gigabytes = found.bandwidth / 1e9
    notes = [f"Memory: {gigabytes:.1f} GB/s, {found.bandwidth_method}."]
    if found.comparison.shape.scaled_from is not None:
        notes.append(f"No figure of the full shape: {found.comparison.shape}.")
    notes += [f"Absent: {name}: {reason}." for name, reason in found.absent.items()]
    systems = {each.facts["system"] for each in found.taken if "system" in each.facts}
    return notes + [f"llama.cpp was built with {system}." for system in sorted(systems)]


def _of(found: Compared, who: str, bits: int) -> list[Taken]:
    return [each for each in found.taken if each.entry.who == who and each.entry.bits == bits]


def _best(taken: Sequence[Taken]) -> Taken | None:
    return min(taken, key=lambda each: statistics.median(each.token_ms), default=None)


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the rounds' ratios: what slowed a round slowed both."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _share(found: Compared, taken: Taken) -> float:
    return taken.read_bytes / found.bandwidth / (statistics.median(taken.token_ms) / 1e3)
