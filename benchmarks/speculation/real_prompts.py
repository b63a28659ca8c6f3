"""
Question: is speculation with an adaptive draft length ever slower than plain decoding, on real prompts.

SmolLM2-135M-Instruct answers forty prompts: chats, edits, summaries, structured text and code. The drafters
are lookups, whose drafts follow from the text alone: so the answers are recorded once, by plain decoding, and
what a draft length would have gained is computed from them and from the seconds of the forwards. Then plain
decoding and speculation take turns by the clock, each call with a policy that has learned nothing. Plain
decoding is called twice a turn: its slowest median shows what the machine's noise makes of equal runs.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from ...decoding import Generation, Generator, Greedy, MaxNewTokens, Sample
from ...decoding.protocols import Drafter
from ...neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from ...neuron_backend.targets.registry import resolve
from ...pretrained import fetch_smollm2
from ...processors import MinNewTokens, Temperature
from ...speculation import AdaptiveLength, PromptLookup, SpeculativeGenerator, SuffixAutomaton
from ..measuring.arguments import add_common, check_at_least, check_temperatures, progress
from ..measuring.machine import backend_digest, machine_facts
from ..measuring.report import Report, finish
from ..measuring.tables import Spread, Table
from ..measuring.timing import milliseconds_in_turns
from ..models.measured_model import decoder_settings, device_name
from ..prompts.prompt_sets import KINDS, prompts
from .gains import (
    SHARES,
    Computed,
    Measured,
    computed_goals,
    computed_table,
    measured_goals,
    measured_table,
    shares_table,
)
from .known_rates import KnownRates
from .replay import RecordedText, recorded_drafts, replay

DRAFTERS: dict[str, Callable[[], Drafter]] = {"lookup": PromptLookup, "suffix automaton": SuffixAutomaton}
CONTROL = "plain decoding again"
"""What is measured beside the drafters: what it differs from 1 is the machine's noise."""

LONGEST = 8
"""The longest draft."""

WIDTHS = (1, 5, LONGEST + 1, 64)
LEAST_TOKENS = 64
"""New tokens of each answer, before which the end of sequence is masked."""

_MAX_LENGTH, _SEED = 1024, 0


@attrs.frozen
class Answer:
    """A prompt and what plain decoding said."""

    kind: str
    temperature: float
    text: RecordedText
    host_seconds: float
    """Of a step, outside the forward."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--weights", choices=("int8", "int4"), help="how linear layers are stored (bfloat16)")
    add("--temps", type=float, nargs="+", default=[0.0, 0.7], metavar="T", help="temperatures (0 0.7)")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of prompts (all)")
    add("--of-a-kind", type=int, metavar="N", help="prompts of each kind (all)")
    add("--tokens", type=int, default=256, metavar="N", help="most new tokens recorded (%(default)s)")
    add("--clock-tokens", type=int, default=64, metavar="N", help="new tokens by the clock (%(default)s)")
    add("--target", default="cpu", metavar="NAME", help="as compile_decoder's (%(default)s)")
    add("--cache", type=Path, metavar="DIR", help="keeps the compiled decoder")
    add_common(parser, rounds=5)


def run(options: argparse.Namespace) -> None:
    """Record, compute and measure, and report."""
    check_at_least("rounds", options.rounds, 1)
    check_at_least("tokens", options.tokens, LEAST_TOKENS)
    check_at_least("clock_tokens", options.clock_tokens, 1)
    check_at_least("threads", options.threads, 1)
    if options.of_a_kind is not None:
        check_at_least("of_a_kind", options.of_a_kind, 1)
    check_temperatures("temps", options.temps)
    decoder = _decoder(options)
    chosen = [
        (kind, text)
        for kind in options.kinds
        for text in [text for each, text in prompts() if each == kind][: options.of_a_kind]
    ]
    milliseconds = _forward_milliseconds(decoder, options.rounds)
    answers = [
        _answer(decoder, kind, text, temperature, options.tokens)
        for temperature in options.temps
        for kind, text in chosen
    ]
    seconds = {width: spread.median / 1e3 for width, spread in milliseconds.items()}
    computed = [each for answer in answers for each in compute(answer, seconds, decoder)]
    measured = [
        each for answer in answers for each in measure(decoder, answer, options.clock_tokens, options.rounds)
    ]
    report = Report(
        benchmark="real-prompts",
        question="Is speculation ever slower than plain decoding, on real prompts?",
        settings={
            "model": "SmolLM2-135M-Instruct",
            "prompts": len(chosen),
            "rounds": options.rounds,
            **decoder_settings(decoder),
        },
        tables=[
            Table(
                "Milliseconds of a forward",
                ("tokens", "ms"),
                [(width, str(spread)) for width, spread in milliseconds.items()],
            ),
            computed_table(computed),
            shares_table(computed),
            measured_table(measured, options.clock_tokens),
        ],
        thresholds=[
            *computed_goals(computed),
            *measured_goals([each for each in measured if each.drafter != CONTROL]),
        ],
        notes=[
            "Computed: the seconds of the forwards and of the drafter, and what each draft would have had "
            "accepted. The best fixed length is chosen afterwards for each answer, which no policy could.",
            "Rates known: the best length by the answer's own acceptance rates, which a policy has to learn.",
            "Every call by the clock starts with a policy that has learned nothing, and all texts were those "
            "of plain decoding.",
        ],
        results={
            "computed": [attrs.asdict(each) for each in computed],
            "measured": [attrs.asdict(each) for each in measured],
            "milliseconds": {width: attrs.asdict(spread) for width, spread in milliseconds.items()},
        },
        machine=machine_facts(device_name(decoder)),
    )
    finish(report, options.json)


def compute(answer: Answer, forward_seconds: Mapping[int, float], decoder: Any) -> list[Computed]:
    """
    What fixed lengths and a fresh adaptive one would have gained on *answer*.

    Args:
        answer: Recorded by plain decoding.

        forward_seconds: By the number of tokens, ascending.

        decoder: Whose forwards the policy expects.
    """
    found = []
    for name, drafter in DRAFTERS.items():
        for limit in _limits(len(answer.text.ids)):
            text = answer.text.first(limit)
            drafts = recorded_drafts(drafter(), text, LONGEST)
            of = (drafts, forward_seconds, answer.host_seconds)
            plain = replay(0, *of).seconds
            policy = AdaptiveLength(LONGEST)
            policy.prepare(decoder)
            found.append(
                Computed(
                    answer.kind,
                    name,
                    answer.temperature,
                    limit,
                    len(text.ids),
                    tuple(plain / replay(k, *of).seconds for k in range(1, LONGEST + 1)),
                    plain / replay(policy, *of).seconds,
                    plain / replay(KnownRates.of(*of), *of).seconds,
                )
            )
    return found


def _limits(tokens: int) -> list[int]:
    """The limits at which an answer of so many *tokens* differs."""
    limits = sorted(SHARES)
    return [limit for shorter, limit in zip([0, *limits], limits, strict=False) if tokens > shorter]


def measure(decoder: CompiledDecoder, answer: Answer, tokens: int, rounds: int) -> list[Measured]:
    """
    Plain decoding, speculation and plain decoding again on one prompt, in turns.

    Raises:
        ValueError: A text is not plain decoding's.
    """
    progress(f"by the clock: {answer.kind}, temperature {answer.temperature}")
    parts = _parts(decoder, answer.temperature, tokens)
    prompt = [list(answer.text.prompt)]
    plain = Generator(decoder, **parts)
    ratios: dict[str, list[float]] = {name: [] for name in (*DRAFTERS, CONTROL)}
    # The first call also feeds the prompt, which the others find in the cache.
    plain(prompt)
    for _ in range(rounds):
        by_plain = plain(prompt)
        for name, drafter in DRAFTERS.items():
            length = AdaptiveLength(LONGEST)
            fast = SpeculativeGenerator(decoder, drafter(), num_draft_tokens=length, **parts)(prompt)
            if fast.ids != by_plain.ids:
                raise ValueError(f"texts must be plain decoding's: got another with {name}, {answer.kind}")
            ratios[name].append(_seconds(by_plain) / _seconds(fast))
        ratios[CONTROL].append(_seconds(by_plain) / _seconds(plain(prompt)))
    return [Measured(answer.kind, name, answer.temperature, tuple(each)) for name, each in ratios.items()]


def _seconds(result: Generation) -> float:
    return result.statistics.total_seconds


def _decoder(options: argparse.Namespace) -> CompiledDecoder:
    """The decoder, from the cache if it is there."""
    folder = None
    if options.cache is not None:
        weights = options.weights or "bfloat16"
        sizes = f"w{'_'.join(map(str, WIDTHS))}-s{LONGEST + 1}-n{_MAX_LENGTH}"
        name = f"real-prompts-{resolve(options.target).name}-{weights}-{sizes}-{backend_digest()}"
        folder = options.cache / name
        if folder.exists():
            decoder = load_decoder(folder)
            decoder.threads = options.threads
            return decoder
    source = fetch_smollm2()
    progress(f"compiling {source.name}")
    decoder = compile_decoder(
        source,
        max_length=_MAX_LENGTH,
        widths=WIDTHS,
        scored_width=LONGEST + 1,
        dtype="bfloat16",
        weights=options.weights,
        target=options.target,
        threads=options.threads,
    )
    if folder is not None:
        decoder.save(folder)
    return decoder


def _forward_milliseconds(decoder: CompiledDecoder, rounds: int) -> dict[int, Spread]:
    """By the number of tokens, ascending, behind 200 others."""
    columns = range(1, decoder.shape.scored_width + 1)
    at = torch.tensor([200])

    def forward(tokens: int) -> Callable[[], object]:
        ids = torch.full((1, next(width for width in decoder.shape.widths if width >= tokens)), -1)
        ids[:, :tokens] = 0
        return lambda: decoder.forward(ids, at)

    times = milliseconds_in_turns([forward(tokens) for tokens in columns], rounds, warm_up=3, in_a_row=20)
    return {tokens: Spread.of(spent) for tokens, spent in zip(columns, times, strict=True)}


def _parts(decoder: CompiledDecoder, temperature: float, tokens: int) -> dict[str, Any]:
    tokenizer: Any = decoder.tokenizer
    least = MinNewTokens(min(tokens, LEAST_TOKENS), tokenizer.eos_token_id)
    return {
        "processors": least | Temperature(temperature) if temperature else least,
        "sampler": Sample(seed=_SEED) if temperature else Greedy(),
        "stop": MaxNewTokens(tokens),
        "tokenizer": tokenizer,
    }


def _answer(decoder: CompiledDecoder, kind: str, text: str, temperature: float, tokens: int) -> Answer:
    progress(f"recording: {kind}, temperature {temperature}")
    result = Generator(decoder, **_parts(decoder, temperature, tokens))([[{"role": "user", "content": text}]])
    spent = result.statistics
    host = spent.total_seconds - spent.seconds["prefill"] - spent.seconds["target"]
    return Answer(
        kind,
        temperature,
        RecordedText(tuple(result.prompts[0]), tuple(result.ids[0])),
        host / len(result.ids[0]),
    )
