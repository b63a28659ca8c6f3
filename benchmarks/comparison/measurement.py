"""The measurement of a comparison: peers are started, checked against the reference, and timed in turns."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from ...decoding.protocols import DecoderShape
from ...neuron_backend.models.weights import weight_dtype
from ...neuron_backend.sizing.bandwidth import measure_bandwidth
from ...neuron_backend.sizing.model_facts import facts_of_config
from ...neuron_backend.sizing.sizing import Sizing
from ...neuron_backend.targets.registry import resolve
from ...neuron_backend.threads import on_threads
from ..measuring.busy_processes import busy_processes
from ..models.shapes import Shape
from ..peers.process import AbsentPeerError, PeerProcess
from .files import ComparisonFiles
from .reference import LogitAgreement, Reference
from .settings import LLAMA_CPP, TRANSFORMERS, Comparison, Entry

_PEERS = "decodekit.benchmarks.peers"

_PAUSE_SECONDS = 0.5
"""Before each peer's turn."""


@attrs.frozen
class PeerResult:
    """Measurements of one entry, a number a round."""

    entry: Entry
    token_ms: tuple[float, ...]
    prompt_ms: dict[int, tuple[float, ...]]
    read_bytes: float
    """Bytes that a decode step reads, of weights and cache."""

    agreement: LogitAgreement
    same_tokens: int
    """Leading tokens of its text that equal the stock model's."""

    facts: dict[str, Any]


@attrs.frozen
class ComparisonResult:
    """All measurements of a comparison."""

    comparison: Comparison
    peers: tuple[PeerResult, ...]
    absent: dict[str, str]
    """Name to reason."""

    bandwidth: float
    """Memory bandwidth in bytes a second: the highest measured between the rounds."""

    bandwidth_method: str


@attrs.frozen(eq=False)
class _Started:
    entry: Entry
    process: PeerProcess
    read_bytes: float


def compare(comparison: Comparison, progress: Callable[[str], None] = lambda line: None) -> ComparisonResult:
    """
    Start the peers, check that all compute the same function, and time them in turns.

    Args:
        comparison: What is measured.

        progress: Called with lines of progress.

    Raises:
        PeerError: A peer failed.

        ValueError: A peer computes another function, or a setting is invalid.
    """
    comparison.check()
    with contextlib.ExitStack() as stack:
        folder = comparison.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder / f"{comparison.shape.name}-{comparison.shape.digest()}-n{comparison.max_length}"
        files = ComparisonFiles(folder, comparison.shape, comparison.max_length)
        files.write()
        reference = Reference.of(files, comparison)
        present: list[_Started] = []
        absent: dict[str, str] = {}
        for entry in comparison.entries:
            progress(f"preparing {entry.name}")
            try:
                started = _start(entry, comparison, files)
            except AbsentPeerError as reason:
                absent[entry.name] = str(reason)
                continue
            stack.callback(started.process.end)
            present.append(started)
        agreements = [reference.agreement(each.entry, each.process, folder) for each in present]
        rounds = []
        bandwidths = []
        stack.enter_context(busy_processes(comparison.busy))
        # The first round is not counted: caches and clocks are cold.
        for i in range(comparison.rounds + 1):
            progress(f"round {i} of {comparison.rounds}")
            with on_threads(comparison.threads):
                bandwidths.append(measure_bandwidth())
            turn = present if i % 2 else present[::-1]
            rounds.append({each.entry: _run(each.process, reference, comparison) for each in turn})
    peers = [
        _result(each, agreement, reference, [found[each.entry] for found in rounds[1:]])
        for each, agreement in zip(present, agreements, strict=True)
    ]
    fastest = max(bandwidths, key=lambda found: found.bytes_per_second)
    return ComparisonResult(comparison, tuple(peers), absent, fastest.bytes_per_second, fastest.method)


def _start(entry: Entry, comparison: Comparison, files: ComparisonFiles) -> _Started:
    threads = comparison.threads
    specification: dict[str, Any] = {"model": str(files.model), "threads": threads}
    position = comparison.prompts[0] + comparison.tokens // 2
    if entry.system == LLAMA_CPP:
        python = {"python": comparison.peer_python} if comparison.peer_python else {}
        file, weights = files.gguf(entry.format, **python)
        specification |= {"file": str(file), "type": entry.format, "max_length": comparison.max_length}
        script = Path(__file__).parents[1] / "peers" / "llama_cpp_peer.py"
        process = PeerProcess.start(entry.name, script, specification, threads=threads, **python)
        cache = _cache_bytes(comparison.shape, 4 if entry.bits == 32 else 2, position)
        return _Started(entry, process, weights + cache)
    dtype, _, weights_format = entry.format.partition("-")
    storage = weights_format or None
    if entry.system == TRANSFORMERS:
        module = f"{_PEERS}.transformers_peer"
        specification |= {"dtype": dtype}
    else:
        module = f"{_PEERS}.decodekit_peer"
        specification |= {
            "folder": str(files.decoder(decoder_name(entry, comparison))),
            "options": {
                "max_length": comparison.max_length,
                "widths": comparison.widths,
                "scored_width": 1,
                "target": comparison.target,
                "dtype": dtype,
                "weights": storage,
                "threads": threads,
            },
        }
    process = PeerProcess.start(entry.name, module, specification, threads=threads)
    return _Started(entry, process, _step_bytes(files, comparison, dtype, storage, position))


def decoder_name(entry: Entry, comparison: Comparison) -> str:
    """The name of the compiled decoder of one of decodekit's entries; another one for another target."""
    widths = "_".join(map(str, comparison.widths))
    return f"{resolve(comparison.target).name}-{entry.format}-w{widths}-n{comparison.max_length}"


def _step_bytes(
    files: ComparisonFiles, comparison: Comparison, dtype: str, storage: str | None, position: int
) -> float:
    facts, _ = facts_of_config(files.model, weight_dtype(dtype))
    shape = DecoderShape(1, comparison.max_length, facts.geometry.vocab_size, (1,), 1)
    return Sizing(facts, shape, (comparison.max_length,), storage=storage).step_bytes(position)


def _cache_bytes(shape: Shape, itemsize: int, positions: int) -> int:
    width = shape.hidden_size // shape.num_attention_heads * shape.num_key_value_heads
    return 2 * shape.num_hidden_layers * width * itemsize * positions


@attrs.frozen
class _Round:
    token_ms: float
    prompt_ms: dict[int, float]
    ids: list[int]


def _run(process: PeerProcess, reference: Reference, comparison: Comparison) -> _Round:
    # The threads of the peer before may still be awake: LLVM's OpenMP lets them spin for 200 ms.
    time.sleep(_PAUSE_SECONDS)
    first, *others = reference.prompts.items()
    answer = process.ask("generate", ids=first[1], count=comparison.tokens)
    prompt_ms = {first[0]: 1e3 * answer["first_seconds"]}
    for length, ids in others:
        prompt_ms[length] = 1e3 * process.ask("generate", ids=ids, count=1)["first_seconds"]
    return _Round(1e3 * answer["other_seconds"] / (comparison.tokens - 1), prompt_ms, answer["ids"])


def _result(
    started: _Started, agreement: LogitAgreement, reference: Reference, rounds: Sequence[_Round]
) -> PeerResult:
    return PeerResult(
        entry=started.entry,
        token_ms=tuple(each.token_ms for each in rounds),
        prompt_ms={length: tuple(each.prompt_ms[length] for each in rounds) for length in reference.prompts},
        read_bytes=started.read_bytes,
        agreement=agreement,
        same_tokens=reference.same_leading_tokens(rounds[0].ids),
        facts=dict(started.process.facts),
    )
