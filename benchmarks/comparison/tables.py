"""The report of a comparison: tables, thresholds, absent peers."""

import statistics
from collections.abc import Iterator, Sequence

import attrs

from ...neuron_backend.targets.registry import resolve
from ..measuring.machine import machine_facts, versions
from ..measuring.report import Bars, Report, Threshold
from ..measuring.tables import Spread, Table
from ..measuring.timing import median_ratio
from ..models.measured_model import device_of
from .measurement import ComparisonResult, PeerResult
from .settings import DECODEKIT, LLAMA_CPP, TRANSFORMERS

QUESTION = (
    "How long does a token take, and a prompt, next to transformers and llama.cpp with the same weights?"
)

_JUDGED_BY = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "Q8_0", "int4": "Q4_0"}
"""The GGUF type that a format of weights is judged by."""


def report(found: ComparisonResult) -> Report:
    """All of it as one report."""
    comparison = found.comparison
    peers = {each.entry.system: each.facts["version"] for each in found.peers if "version" in each.facts}
    return Report(
        benchmark="decode",
        question=QUESTION,
        settings={
            "shape": str(comparison.shape),
            "batch": 1,
            "threads": comparison.threads,
            **({"busy processes": comparison.busy} if comparison.busy else {}),
            "prompts": comparison.prompts,
            "tokens": comparison.tokens,
            "rounds": comparison.rounds,
            "target": comparison.target,
            "widths": comparison.widths,
        },
        tables=[_times(found), _functions(found)],
        thresholds=thresholds(found),
        bars=bars(found),
        notes=_notes(found),
        # Without paths of this machine.
        results=attrs.asdict(
            attrs.evolve(found, comparison=attrs.evolve(comparison, folder=None, peer_python=""))
        ),
        machine=machine_facts(device_of(resolve(comparison.target).name)),
        versions=versions() | peers,
    )


def thresholds(found: ComparisonResult) -> list[Threshold]:
    """
    Goals: llama.cpp at equal bits, transformers at its best, the share of the memory bandwidth.

    Beside busy processes only the tokens a second, next to llama.cpp's.
    """
    if busy := found.comparison.busy:
        return [
            Threshold(
                f"tokens a second beside {busy} busy processes, {names}",
                median_ratio(theirs.token_ms, ours.token_ms),
                ">=",
                0.8,
                "×",
            )
            for ours, theirs, names in _at_equal_bits(found)
        ]
    judged = []
    for ours, theirs, names in _at_equal_bits(found):
        ratio = median_ratio(ours.token_ms, theirs.token_ms)
        judged.append(Threshold(f"ms per token, {names}", ratio, "<=", 1.0, "×"))
        for length in found.comparison.prompts:
            ratio = median_ratio(ours.prompt_ms[length], theirs.prompt_ms[length])
            judged.append(Threshold(f"prompt of {length}, {names}", ratio, "<=", 1.2, "×"))
    best = _fastest(_of(found, DECODEKIT, 16) + _of(found, DECODEKIT, 32))
    stock = _fastest([each for each in found.peers if each.entry.system == TRANSFORMERS])
    if best is not None and stock is not None:
        what = f"times faster a token, {best.entry.format} against transformers {stock.entry.format}"
        judged.append(Threshold(what, median_ratio(stock.token_ms, best.token_ms), ">=", 2.0, "×"))
    for each in found.peers:
        if each.entry.system == DECODEKIT and (each.entry.format == "float16" or each.entry.bits == 8):
            what = f"share of the memory's limit, {each.entry.format}"
            judged.append(Threshold(what, 100 * _share(found, each), ">=", 60.0, " %"))
    return judged


def _at_equal_bits(found: ComparisonResult) -> Iterator[tuple[PeerResult, PeerResult, str]]:
    """Each of ours, the peer of llama.cpp that it is judged by, and both names."""
    types = {each.entry.format: each for each in found.peers if each.entry.system == LLAMA_CPP}
    for ours in (each for each in found.peers if each.entry.system == DECODEKIT):
        kind = _JUDGED_BY[ours.entry.format.rpartition("-")[2]]
        if kind in types:
            yield ours, types[kind], f"{ours.entry.format} against llama.cpp {kind}"


def bars(found: ComparisonResult) -> Bars:
    """Milliseconds a token, by format of the weights."""
    names = {kind: format_ for format_, kind in _JUDGED_BY.items()}
    medians = {
        (each.entry.system, names.get(each.entry.format, each.entry.format.rpartition("-")[2])): (
            statistics.median(each.token_ms)
        )
        for each in found.peers
    }
    groups = [format_ for format_ in _JUDGED_BY if any(format_ == known for _, known in medians)]
    systems = [each for each in (DECODEKIT, LLAMA_CPP, TRANSFORMERS) if any(each == s for s, _ in medians)]
    heights = {system: [medians.get((system, each)) for each in groups] for system in systems}
    return Bars("Milliseconds a token", "ms", groups, heights)


def _times(found: ComparisonResult) -> Table:
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
        for each in found.peers
    ]
    columns = ("system", "bits", "ms per token", *(f"ms, prompt of {n}" for n in lengths))
    return Table(
        "Medians (lowest–highest) of the rounds", (*columns, "MB read a token", "of the memory's limit"), rows
    )


def _functions(found: ComparisonResult) -> Table:
    rows = [
        (
            each.entry.name,
            each.agreement.divergence,
            f"{100 * each.agreement.same_top_token:.0f} %",
            each.same_tokens,
        )
        for each in found.peers
    ]
    columns = (
        "system",
        "divergence (nats a token)",
        "same top token",
        f"same leading tokens of {found.comparison.tokens}",
    )
    return Table("Agreement with transformers in float32, random weights", columns, rows)


def _notes(found: ComparisonResult) -> list[str]:
    gigabytes = found.bandwidth / 1e9
    notes = [f"Memory: {gigabytes:.1f} GB/s, {found.bandwidth_method}."]
    if found.comparison.shape.scaled_from is not None:
        notes.append(f"No figure of the full shape: {found.comparison.shape}.")
    notes += [f"Absent: {name}: {reason}." for name, reason in found.absent.items()]
    systems = {each.facts["system"] for each in found.peers if "system" in each.facts}
    return notes + [f"llama.cpp was built with {system}." for system in sorted(systems)]


def _of(found: ComparisonResult, system: str, bits: int) -> list[PeerResult]:
    return [each for each in found.peers if each.entry.system == system and each.entry.bits == bits]


def _fastest(results: Sequence[PeerResult]) -> PeerResult | None:
    return min(results, key=lambda each: statistics.median(each.token_ms), default=None)


def _share(found: ComparisonResult, result: PeerResult) -> float:
    return result.read_bytes / found.bandwidth / (statistics.median(result.token_ms) / 1e3)
