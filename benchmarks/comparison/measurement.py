"""
Question: how long does a token take, and a prompt, next to transformers and llama.cpp with the same weights.

Every contender is a process of its own that holds one model of random weights in one format. Round
after round they take turns, neighbours of equal weight bits, forth and back, so that whatever
else the machine does meets all of them. Before that each scores the same tokens, and must find
what the stock model in float32 finds: a benchmark of different computations would be none.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from ..decoding.protocols import DecoderShape
from ..neuron_backend.sizing.bandwidth import measure_bandwidth
from ..neuron_backend.sizing.model_facts import facts_of_config
from ..neuron_backend.sizing.sizing import Sizing
from ..neuron_backend.threads import on_threads
from ..neuron_backend.weights import weight_dtype
from .comparison_files import ComparisonFiles
from .contenders.process import AbsentContenderError, ContenderProcess
from .shapes import Shape

OURS, TRANSFORMERS, LLAMA_CPP = "decodekit", "transformers", "llama.cpp"

_BITS = {
    "float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "int4": 4,
    "F32": 32, "BF16": 16, "F16": 16, "Q8_0": 8, "Q4_0": 4,
}  # fmt: skip

_MAX_DIVERGENCE = {32: 1e-4, 16: 1e-2}
"""
Mean, from the stock model in float32. Logits of another function with the same weights (positions
rotated otherwise, a norm left out) diverge by more than 0.1. Fewer bits change the function: theirs is shown.
"""

_SCORED = 32
"""Tokens on which functions are compared."""


@attrs.frozen
class Entry:
    """Who takes part, and with which weights."""

    who: str
    format: str
    """A dtype, or a dtype and a format of weights, such as ``"bfloat16-int8"``; or a type of GGUF."""

    @property
    def name(self) -> str:
        """In tables."""
        return f"{self.who} {self.format}"

    @property
    def bits(self) -> int:
        """Of a weight."""
        return _BITS.get(self.format.rpartition("-")[2], 0)


@attrs.frozen
class Comparison:
    """What is to be compared, and how."""

    shape: Shape
    entries: tuple[Entry, ...]
    prompts: tuple[int, ...] = (64, 512)
    """Their lengths; text is generated after the first."""

    tokens: int = 64
    rounds: int = 5
    threads: int = 2
    widths: tuple[int, ...] = (1, 64, 512)
    target: str = "cpu"
    folder: Path | None = None
    """Keeps the model, the GGUF files and what was compiled. None: nothing is kept."""

    peer_python: str = ""
    """An interpreter that has llama-cpp-python and gguf. Empty: this one."""

    @property
    def max_length(self) -> int:
        """Positions that every contender has."""
        return max(1024, max(self.prompts) + self.tokens)


@attrs.frozen
class Taken:
    """What one contender took: a number a round."""

    entry: Entry
    token_ms: tuple[float, ...]
    prompt_ms: dict[int, tuple[float, ...]]
    read_bytes: float
    """By a decode step, of weights and of what it attends to."""

    divergence: float
    """Mean Kullback-Leibler divergence from the stock model in float32, nats a token."""

    agreement: float
    """Share of tokens where the likeliest is the stock model's."""

    same_tokens: int
    """How many leading ones of its own text are the stock model's."""

    facts: dict[str, Any]


@attrs.frozen
class Compared:
    """All of it."""

    comparison: Comparison
    taken: tuple[Taken, ...]
    absent: dict[str, str]
    """Name to reason."""

    bandwidth: float
    """Bytes a second: the fastest measured between the rounds."""

    bandwidth_method: str


def compare(comparison: Comparison, progress: Any = None) -> Compared:
    """
    Make the contenders, see that they compute the same, let them run.

    Args:
        comparison: What and how.

        progress: Called with a line now and then.

    Raises:
        ContenderError: One has failed.

        ValueError: One computes something else, or an argument breaks its rule.
    """
    say = progress or (lambda line: None)
    _check(comparison)
    with contextlib.ExitStack() as stack:
        folder = comparison.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder / f"{comparison.shape.name}-{comparison.shape.digest()}-n{comparison.max_length}"
        files = ComparisonFiles(folder, comparison.shape, comparison.max_length)
        files.write()
        reference = Reference.of(files, comparison)
        present: list[tuple[Entry, ContenderProcess, float]] = []
        absent: dict[str, str] = {}
        for entry in comparison.entries:
            say(f"preparing {entry.name}")
            try:
                process, read = _start(entry, comparison, files)
            except AbsentContenderError as reason:
                absent[entry.name] = str(reason)
                continue
            stack.callback(process.end)
            present.append((entry, process, read))
        functions = [_function(entry, process, reference, folder) for entry, process, _ in present]
        rounds = []
        bandwidths = []
        # The first round is not counted: caches and clocks are cold.
        for i in range(comparison.rounds + 1):
            say(f"round {i} of {comparison.rounds}")
            with on_threads(comparison.threads):
                bandwidths.append(measure_bandwidth())
            turn = present if i % 2 else present[::-1]
            rounds.append({entry: _run(process, reference, comparison) for entry, process, _ in turn})
    taken = [
        _taken(entry, process, read, function, reference, rounds)
        for (entry, process, read), function in zip(present, functions, strict=True)
    ]
    fastest = max(bandwidths, key=lambda found: found.bytes_per_second)
    return Compared(comparison, tuple(taken), absent, fastest.bytes_per_second, fastest.method)


def entries(ours: Sequence[str], transformers: Sequence[str], llama_cpp: Sequence[str]) -> tuple[Entry, ...]:
    """
    All formats, those of equal bits beside each other.

    >>> [entry.name for entry in entries(["float32", "bfloat16-int8"], ["float32"], ["Q8_0"])]
    ['decodekit float32', 'transformers float32', 'decodekit bfloat16-int8', 'llama.cpp Q8_0']
    """
    found = [
        Entry(who, each)
        for who, formats in ((OURS, ours), (TRANSFORMERS, transformers), (LLAMA_CPP, llama_cpp))
        for each in formats
    ]
    return tuple(sorted(found, key=lambda entry: -entry.bits))


@attrs.frozen(eq=False)
class Reference:
    """What the stock model in float32 makes of the tokens that everybody gets."""

    prompts: dict[int, list[int]]
    following: list[int]
    log_probs: Tensor
    """``[scored, vocab]`` before each of *following*."""

    ids: list[int]
    """Its own text."""

    @classmethod
    def of(cls, files: ComparisonFiles, comparison: Comparison) -> "Reference":
        """Ask it."""
        from .contenders.transformers_contender import contender

        rng = torch.Generator().manual_seed(1)
        vocab = comparison.shape.vocab_size
        lengths = (*comparison.prompts, _SCORED)
        drawn = [torch.randint(vocab, (length,), generator=rng).tolist() for length in lengths]
        prompts = dict(zip(comparison.prompts, drawn, strict=False))
        stock = contender({"model": str(files.model), "dtype": "float32", "threads": comparison.threads})
        first = prompts[comparison.prompts[0]]
        file = files.folder / "reference.logits"
        rows = stock.score(first, drawn[-1], str(file))
        return cls(
            prompts,
            drawn[-1],
            _log_probs(file, rows, vocab),
            stock.generate(first, comparison.tokens)["ids"],
        )


def _check(comparison: Comparison) -> None:
    for name in ("tokens", "rounds", "threads"):
        least = 2 if name == "tokens" else 1
        if getattr(comparison, name) < least:
            raise ValueError(f"{name!r} must be >= {least}: got {getattr(comparison, name)}")
    unknown = [entry.name for entry in comparison.entries if not entry.bits]
    if unknown or not comparison.entries:
        raise ValueError(
            f"'entries' must have formats from {', '.join(_BITS)}: got {', '.join(unknown) or None}"
        )


def _start(entry: Entry, comparison: Comparison, files: ComparisonFiles) -> tuple[ContenderProcess, float]:
    """The contender, and the bytes that it reads for a token."""
    threads = comparison.threads
    base = {"model": str(files.model), "threads": threads}
    position = comparison.prompts[0] + comparison.tokens // 2
    if entry.who == LLAMA_CPP:
        python = {"python": comparison.peer_python} if comparison.peer_python else {}
        file, weights = files.gguf(entry.format, **python)
        base |= {"file": str(file), "type": entry.format, "max_length": comparison.max_length}
        script = Path(__file__).parent / "contenders" / "llama_cpp_contender.py"
        process = ContenderProcess.start(entry.name, script, base, threads=threads, **python)
        return process, weights + _cache_bytes(comparison.shape, 4 if entry.bits == 32 else 2, position)
    dtype, _, weights_format = entry.format.partition("-")
    storage = weights_format or None
    read = _step_bytes(files, comparison, dtype, storage, position)
    if entry.who == TRANSFORMERS:
        base |= {"dtype": dtype}
        module = "decodekit.bench.contenders.transformers_contender"
        return ContenderProcess.start(entry.name, module, base, threads=threads), read
    widths = "_".join(map(str, comparison.widths))
    base |= {
        "folder": str(files.decoder(f"{entry.format}-w{widths}-n{comparison.max_length}")),
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
    module = "decodekit.bench.contenders.decodekit_contender"
    return ContenderProcess.start(entry.name, module, base, threads=threads), read


def _step_bytes(
    files: ComparisonFiles, comparison: Comparison, dtype: str, storage: str | None, position: int
) -> float:
    facts, _ = facts_of_config(files.model, weight_dtype(dtype))
    shape = DecoderShape(1, comparison.max_length, facts.geometry.vocab_size, (1,), 1)
    return Sizing(facts, shape, (comparison.max_length,), storage=storage).step_bytes(position)


def _cache_bytes(shape: Shape, itemsize: int, positions: int) -> int:
    width = shape.hidden_size // shape.num_attention_heads * shape.num_key_value_heads
    return 2 * shape.num_hidden_layers * width * itemsize * positions


def _function(
    entry: Entry, process: ContenderProcess, reference: Reference, folder: Path
) -> tuple[float, float]:
    """Divergence and agreement."""
    file = folder / "contender.logits"
    first = next(iter(reference.prompts.values()))
    rows = process.ask("score", ids=first, following=reference.following, file=str(file))
    found = _log_probs(file, rows, reference.log_probs.shape[1])
    expected = reference.log_probs
    divergence = float((expected.exp() * (expected - found)).sum(dim=-1).mean())
    agreement = float((expected.argmax(dim=-1) == found.argmax(dim=-1)).double().mean())
    if divergence > _MAX_DIVERGENCE.get(entry.bits, float("inf")):
        raise ValueError(
            f"{entry.name!r} must compute what the stock model computes, with a divergence of at most "
            f"{_MAX_DIVERGENCE[entry.bits]:g}: got {divergence:.3g}"
        )
    return divergence, agreement


def _log_probs(file: Path, rows: int, vocab: int) -> Tensor:
    logits = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float32).view(rows, vocab)
    return logits.double().log_softmax(dim=-1)


def _run(process: ContenderProcess, reference: Reference, comparison: Comparison) -> dict[str, Any]:
    first, *others = reference.prompts.items()
    said = process.ask("generate", ids=first[1], count=comparison.tokens)
    prompt_ms = {first[0]: 1e3 * said["first_seconds"]}
    for length, ids in others:
        prompt_ms[length] = 1e3 * process.ask("generate", ids=ids, count=1)["first_seconds"]
    token_ms = 1e3 * said["other_seconds"] / (comparison.tokens - 1)
    return {"token_ms": token_ms, "prompt_ms": prompt_ms, "ids": said["ids"]}


def _taken(
    entry: Entry,
    process: ContenderProcess,
    read: float,
    function: tuple[float, float],
    reference: Reference,
    rounds: Sequence[dict[Entry, dict[str, Any]]],
) -> Taken:
    counted = [each[entry] for each in rounds[1:]]
    return Taken(
        entry=entry,
        token_ms=tuple(each["token_ms"] for each in counted),
        prompt_ms={
            length: tuple(each["prompt_ms"][length] for each in counted) for length in reference.prompts
        },
        read_bytes=read,
        divergence=function[0],
        agreement=function[1],
        same_tokens=sum(1 for _ in _leading(counted[0]["ids"], reference.ids)),
        facts=dict(process.facts),
    )


def _leading(ours: Sequence[int], theirs: Sequence[int]) -> Iterator[int]:
    for a, b in zip(ours, theirs, strict=True):
        if a != b:
            return
        yield a
