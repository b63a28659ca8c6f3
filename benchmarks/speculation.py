"""
Question: how much faster does a draft make decoding, and does it cost anything where it is useless.

    GOMP_SPINCOUNT=10000 python benchmarks/speculation.py [--dtype float32|bfloat16]
                                [--length 1 2 4 8 adaptive] [--cache DIR] [--quick]

The target is the bundled one grown to nearly the shape of SmolLM2-135M (``grow.py``: 18/6 heads of
32 dimensions for its 9/3 of 64, and a vocabulary of 4,096), the draft the bundled one as it is:
real acceptance at a real shape. Side by side, on the same prompts from
files that neither model has seen, weights and type of number, after warm-up, a turn each, round
after round:

- plain decoding, speculation at several lengths, ``transformers.generate`` with and without an
  assistant model;
- plain decoding and speculation with a draft that is always wrong;
- the same with and without a draft for a batch of rows.

What speculation gains is held against what it has to give (Leviathan, Kalman and Matias, 2023,
`Fast Inference from Transformers via Speculative Decoding <https://arxiv.org/abs/2211.17192>`_,
theorem 3.8, with measured costs): tokens a round over k c + v(k + 1), where c is a forward of the
draft and v(w) one of the target over w columns, in forwards of plain decoding, all timed where
they happen. The difference is what the host takes, and the draft's reading of the prompt.

OpenMP's threads wait for each other some hundred times in a forward. Let them spin for some
microseconds and sleep then: ``GOMP_SPINCOUNT=10000``. As long as they always sleep
(``OMP_WAIT_POLICY=PASSIVE``) a forward takes twice as long, and as long as they always spin, on
a machine that others use too, up to four times.
"""

import argparse
import functools
import itertools
import json
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import acceptance
import attrs
import torch
import transformers
from grow import SMOLLM2_135M, grow
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from decodekit.decoding import (
    Agreement,
    Decoder,
    DraftLength,
    Generator,
    Greedy,
    MaxNewTokens,
    Round,
    Sample,
    Slots,
    Verification,
)
from decodekit.neuron_backend import StaticDecoder, compile_decoder, load_decoder
from decodekit.processors import Temperature
from decodekit.speculation import Block, DraftModel, SpeculativeGenerator

MAX_LENGTH, PREFILL = 1024, 64
WIDTHS, BATCH_WIDTHS, DRAFT_WIDTHS = (1, 2, 3, 5, 9), (1, 2, 3, 5), (1, 2)
"""Of forwards that score every column; a batch has more to compute for each, and pays for fewer."""
BARS = {"of_formula": 0.95, "of_assisted": 1.5, "adversarial": 0.98, "batch": 1.0}


@attrs.frozen(eq=False)
class Watched:
    """A decoder whose forwards are timed where they happen: in a run, among everything else."""

    decoder: StaticDecoder
    seconds: dict[int, list[float]] = attrs.field(factory=dict)
    """Of every forward, by its width."""

    @property
    def shape(self) -> Any:
        """The decoder's."""
        return self.decoder.shape

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """The decoder's."""
        start = time.perf_counter()
        logits = self.decoder.forward(ids, cache_pos)
        self.seconds.setdefault(ids.shape[1], []).append(time.perf_counter() - start)
        return logits

    def taken(self) -> dict[int, list[float]]:
        """What was timed since the last call."""
        seconds = dict(self.seconds)
        self.seconds.clear()
        return seconds


@attrs.frozen(eq=False)
class Pair:
    """Target and draft, as transformers has them and compiled for one number of rows."""

    models: tuple[LlamaForCausalLM, LlamaForCausalLM]
    target: Watched
    draft: Watched


@attrs.frozen(eq=False)
class Contrary:
    """The draft model turned round: what it finds likely it finds unlikely. As dear, and always wrong."""

    decoder: Watched

    @property
    def shape(self) -> Any:
        """The draft's."""
        return self.decoder.shape

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """The draft's logits, negated."""
        return -self.decoder.forward(ids, cache_pos)


@attrs.define(eq=False)
class Recorded:
    """A draft length whose rounds are kept."""

    length: int | DraftLength
    rounds: list[Round] = attrs.field(factory=list)

    @property
    def most(self) -> int:
        """The length's."""
        return self.length if isinstance(self.length, int) else self.length.most

    def __call__(self, rows: int) -> int:
        """What the length says."""
        return self.length if isinstance(self.length, int) else self.length(rows)

    def learn(self, outcome: Round) -> None:
        """Keep it, and let the length hear it."""
        self.rounds.append(outcome)
        if not isinstance(self.length, int):
            self.length.learn(outcome)

    def prepare(self, *args: Any) -> None:
        """As the length does, if it does."""
        getattr(self.length, "prepare", lambda *args: None)(*args)


@attrs.frozen(eq=False)
class Run:
    """One contender's turn."""

    seconds: float
    """From the call to the last token."""

    decode_seconds: float
    """From the first token to the last; all of it where nobody says when the first came."""

    ids: list[list[int]]
    rounds: list[Round]

    target: dict[int, list[float]] = attrs.field(factory=dict)
    """Seconds of each of the target's forwards, by width."""

    draft: dict[int, list[float]] = attrs.field(factory=dict)
    """Of the draft's."""

    @property
    def tokens(self) -> int:
        """New ones, of all rows."""
        return sum(map(len, self.ids))


Contender = Callable[[list[list[int]]], Run]


def models(dtype: str) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """The bundled target, grown, and the bundled draft; no token ends a text."""
    small, draft = (
        AutoModelForCausalLM.from_pretrained(acceptance.PAIR / name, dtype=dtype).eval()
        for name in ("target", "draft")
    )
    target = grow(small, **SMOLLM2_135M, max_position_embeddings=MAX_LENGTH)
    draft.config.max_position_embeddings = MAX_LENGTH
    for model in (target, draft):
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
    return target, draft


def compiled(
    model: LlamaForCausalLM,
    name: str,
    widths: tuple[int, ...],
    batch: int,
    cache: pathlib.Path | None,
    threads: int | None = None,
) -> StaticDecoder:
    """*model* compiled for *batch* rows, taken from the folder *cache* where it is there."""
    shape = {
        "batch_size": batch,
        "max_length": MAX_LENGTH,
        "widths": (*widths, PREFILL),
        "scored_width": widths[-1],
    }
    dtype = str(model.dtype).removeprefix("torch.")
    if cache is None:
        return compile_decoder(model, target="cpu", threads=threads, **shape)
    folder = cache / f"{name}-{dtype}-b{batch}-w{'_'.join(map(str, shape['widths']))}"
    if not folder.exists():
        compile_decoder(model, target="cpu", **shape).save(folder)
    decoder = load_decoder(folder)
    decoder.threads = threads
    return decoder


def selection(temperature: float) -> dict[str, Any]:
    """What chooses at *temperature*."""
    if temperature == 0:
        return {"processors": None, "selection": Greedy()}
    return {"processors": Temperature(temperature), "selection": Sample(seed=0)}


def of_ours(
    generator: Generator, pair: Pair, drafter: Decoder | None = None, length: Recorded | None = None
) -> Contender:
    """*generator*'s turn; what the decoders remember of the last prompts is forgotten first."""

    def run(prompts: list[list[int]]) -> Run:
        for decoder in (pair.target, pair.draft, drafter or pair.draft):
            Slots.of(decoder).forget()
        before = 0 if length is None else len(length.rounds)
        pair.target.taken(), pair.draft.taken()
        start = time.perf_counter()
        result = generator(prompts)
        seconds = time.perf_counter() - start
        spent = result.statistics
        decode = spent.total_seconds - (spent.first_token_seconds or 0.0)
        rounds = [] if length is None else length.rounds[before:]
        return Run(seconds, decode, result.ids, rounds, pair.target.taken(), pair.draft.taken())

    return run


def of_transformers(model: LlamaForCausalLM, temperature: float, tokens: int, **options: Any) -> Contender:
    """``generate``'s turn."""
    if temperature > 0:
        options |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    else:
        options |= {"do_sample": False}

    def run(prompts: list[list[int]]) -> Run:
        ids = torch.tensor(prompts)
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **options)
        seconds = time.perf_counter() - start
        return Run(seconds, seconds, out[:, ids.shape[1] :].tolist(), [])

    return run


def a_length(name: str, most: int) -> int | DraftLength:
    """A number, or the controller."""
    if name != "adaptive":
        return int(name)
    from decodekit.speculation import AdaptiveLength

    return AdaptiveLength(most=most)


def plain_and_drafted(
    pair: Pair, lengths: Sequence[str], temperature: float, tokens: int, draft: Decoder | None = None
) -> dict[str, Contender]:
    """
    Ours: without a draft, and with one at each of *lengths*.

    Sampled text is verified by agreement, which gives plain decoding's, and by blocks, which
    keep its distribution alone, as transformers does.
    """
    draft = pair.draft if draft is None else draft
    parts = {**selection(temperature), "stop": MaxNewTokens(tokens)}
    contenders = {"plain": of_ours(Generator(pair.target, **parts), pair)}
    most = pair.target.shape.scored_width - 1
    verifications: dict[str, Verification] = {"": Agreement()} | ({", Block": Block()} if temperature else {})
    for (how, verification), name in itertools.product(verifications.items(), lengths):
        if name.isdecimal() and int(name) > most:
            continue
        length = Recorded(a_length(name, most))
        generator = SpeculativeGenerator(
            pair.target,
            drafter=DraftModel(draft),
            num_draft_tokens=length,
            verification=verification,
            **parts,
        )
        contenders[f"k = {name}{how}"] = of_ours(generator, pair, draft, length)
    return contenders


def take_turns(
    contenders: dict[str, Contender], batches: list[list[list[int]]], rounds: int
) -> dict[str, list[list[Run]]]:
    """Every contender's runs, ``[batch][round]``, after one uncounted turn each."""
    for run in contenders.values():
        run(batches[0])
    runs: dict[str, list[list[Run]]] = {name: [[] for _ in batches] for name in contenders}
    for _ in range(rounds):
        for i, prompts in enumerate(batches):
            for name, run in contenders.items():
                runs[name][i].append(run(prompts))
    return runs


def seconds_of(runs: list[list[Run]], what: str) -> float:
    """The median round of each batch, added up."""
    return sum(statistics.median(getattr(run, what) for run in of_batch) for of_batch in runs)


@attrs.frozen
class Costs:
    """Of forwards as they ran, among everything else, in those of the target over one column."""

    narrow_seconds: float
    c: float
    v: dict[int, float]

    @classmethod
    def of(cls, runs: list[list[Run]], plain: list[list[Run]], widths: Sequence[int]) -> "Costs":
        """Measured in a contender's *runs* and in those of *plain* decoding: medians."""
        narrow = statistics.median(_seconds(plain, "target")[1])
        target, draft = _seconds(runs, "target"), _seconds(runs, "draft")
        steps = [s for width, seconds in draft.items() if width in DRAFT_WIDTHS for s in seconds]
        v = {w: statistics.median(target[w]) / narrow for w in sorted(target) if w in widths}
        return cls(narrow, statistics.median(steps) / narrow if steps else 0.0, {1: 1.0} | v)

    def of_round(self, guesses: int) -> float:
        """What a round with a draft of so many *guesses* has to cost."""
        width = next(width for width in self.v if width > guesses)
        return guesses * self.c + self.v[width]


def _seconds(runs: list[list[Run]], model: str) -> dict[int, list[float]]:
    """Of every forward of *model* in *runs*, by width."""
    seconds: dict[int, list[float]] = {}
    for run in itertools.chain.from_iterable(runs):
        for width, spent in getattr(run, model).items():
            seconds.setdefault(width, []).extend(spent)
    return seconds


def tokens_of_round(outcome: Round) -> int:
    """What a round gave: every row's accepted guesses and the token after them."""
    return sum(outcome.accepted) + len(outcome.accepted)


def by_formula(rounds: list[Round], costs: Costs, kept: float) -> float:
    """
    The speed-up that such rounds would have if nothing but forwards took time.

    Args:
        rounds: All of them.

        costs: Of forwards.

        kept: The share of the tokens that rounds gave which the stop did not cut off.
    """
    gained = kept * sum(tokens_of_round(one) / len(one.accepted) for one in rounds)
    return gained / sum(costs.of_round(max(one.drafted, default=0)) for one in rounds)


def standing(rounds: list[Round]) -> list[float]:
    """For each place in a draft the share of guesses that stood where those before them had."""
    shares = []
    for place in range(max((max(one.drafted, default=0) for one in rounds), default=0)):
        judged = [
            accepted > place
            for one in rounds
            for drafted, accepted in zip(one.drafted, one.accepted, strict=True)
            if drafted > place and accepted >= place
        ]
        shares.append(sum(judged) / max(1, len(judged)))
    return shares


def table(runs: dict[str, list[list[Run]]], widths: Sequence[int]) -> list[dict[str, Any]]:
    """Print a line a contender and return the same; every column of *widths* is scored."""
    plain = runs["plain"]
    print(
        "                        tokens/s  x plain  | decoding    formula   of it |  tau   k  |"
        " ms a round: draft target  other"
    )
    lines = []
    for name, own in runs.items():
        tokens = sum(of_batch[0].tokens for of_batch in own)
        line: dict[str, Any] = {
            "name": name,
            "tokens_per_second": tokens / seconds_of(own, "seconds"),
            "times_plain": seconds_of(plain, "seconds") / seconds_of(own, "seconds"),
        }
        text = f"{name:22} {line['tokens_per_second']:9.1f} {line['times_plain']:8.2f}"
        rounds = [one for of_batch in own for run in of_batch for one in run.rounds]
        if rounds:
            costs = Costs.of(own, plain, widths)
            # A row's first token comes from its prompt.
            decoded = sum(run.tokens - len(run.ids) for of_batch in own for run in of_batch)
            line |= rounds_line(rounds, costs, decoded / sum(map(tokens_of_round, rounds)))
            line["decode_speed_up"] = seconds_of(plain, "decode_seconds") / seconds_of(own, "decode_seconds")
            line["of_formula"] = line["decode_speed_up"] / line["formula"]
            text += f"  | {line['decode_speed_up']:8.2f} {line['formula']:10.2f} {line['of_formula']:7.1%} |"
            text += f" {line['tau']:5.2f} {line['mean_length']:4.1f} |           "
            text += " ".join(f"{line[part]:6.2f}" for part in ("draft_ms", "target_ms", "other_ms"))
            text += f" | c {costs.c:.3f}; " + ", ".join(
                f"v({w}) {v:.2f}" for w, v in costs.v.items() if w > 1
            )
        print(text)
        lines.append(line)
    return lines


def rounds_line(rounds: list[Round], costs: Costs, kept: float) -> dict[str, Any]:
    """What a contender's rounds say; arguments as of :func:`by_formula`."""
    spent = {
        f"{part}_ms": 1e3 * statistics.fmean(getattr(one, f"{part}_seconds") for one in rounds)
        for part in ("draft", "target", "other")
    }
    rows = sum(len(one.accepted) for one in rounds)
    return {
        "costs": attrs.asdict(costs),
        "formula": by_formula(rounds, costs, kept),
        "tau": sum(map(tokens_of_round, rounds)) / rows,
        "mean_length": statistics.fmean(max(one.drafted, default=0) for one in rounds),
        "standing": standing(rounds),
        **spent,
    }


def judge(name: str, value: float, bar: str) -> dict[str, Any]:
    """Print a figure beside its bar."""
    met = value >= BARS[bar]
    print(f"    {name}: {value:.3f}, bar {BARS[bar]}: {'met' if met else 'MISSED'}")
    return {"name": name, "value": value, "bar": BARS[bar], "met": met}


def one_row(pair: Pair, options: argparse.Namespace, temperature: float) -> dict[str, Any]:
    """Batch 1: ours against ourselves, the formula and transformers."""
    target, draft = pair.models
    contenders = plain_and_drafted(pair, options.length, temperature, options.tokens)
    contenders["transformers"] = of_transformers(target, temperature, options.tokens)
    contenders["transformers assisted"] = of_transformers(
        target, temperature, options.tokens, assistant_model=draft
    )
    batches = [[prompt] for prompt in acceptance.held_out_prompts(options.prompts)]
    runs = take_turns(contenders, batches, options.rounds)
    print(f"\nbatch 1, temperature {temperature}: {len(batches)} prompts, {options.tokens} new tokens each")
    lines = table(runs, WIDTHS)
    texts = {name: [of_batch[0].ids for of_batch in own] for name, own in runs.items()}
    same = {
        name: own == texts["plain"]
        for name, own in texts.items()
        if name.startswith("k = ") and "Block" not in name
    }
    print(f"    same text as plain decoding: {same}")
    longest = max(lines, key=lambda line: len(line.get("standing", [])))
    print(f"    guesses that stood, by place: {' '.join(f'{share:.3f}' for share in longest['standing'])}")
    own = [line for line in lines if "formula" in line]
    assisted = next(line for line in lines if line["name"] == "transformers assisted")
    best = max(own, key=lambda line: line["tokens_per_second"])
    bars = []
    for chosen in [line for line in own if "adaptive" in line["name"]] or [best]:
        times = chosen["tokens_per_second"] / assisted["tokens_per_second"]
        bars += [
            judge(f"{chosen['name']}, of the formula", chosen["of_formula"], "of_formula"),
            judge(f"{chosen['name']}, of transformers assisted", times, "of_assisted"),
        ]
    print(f"    best length: {best['name']}")
    return {
        "temperature": temperature,
        "lines": lines,
        "same": same,
        "bars": bars,
    }


def adversarial(pair: Pair, options: argparse.Namespace, temperature: float) -> dict[str, Any]:
    """A draft that is always wrong."""
    print(
        f"\na draft that is always wrong, temperature {temperature}, {options.adversarial_tokens} new tokens"
    )
    contenders: dict[str, Contender] = {}
    for name in options.length:
        # A controller that has not met it before, every time.
        def fresh(prompts: list[list[int]], name: str = name) -> Run:
            few = plain_and_drafted(
                pair, [name], temperature, options.adversarial_tokens, draft=Contrary(pair.draft)
            )
            return few[f"k = {name}"](prompts)

        contenders[f"k = {name}"] = fresh
    plain = plain_and_drafted(pair, [], temperature, options.adversarial_tokens)
    batches = [[prompt] for prompt in acceptance.held_out_prompts(1)]
    runs = take_turns({**plain, **contenders}, batches, options.rounds)
    lines = table(runs, WIDTHS)
    last = next((line for line in lines if line["name"] == "k = adaptive"), lines[-1])
    bars = [judge(f"{last['name']}, of plain decoding", last["decode_speed_up"], "adversarial")]
    return {"temperature": temperature, "lines": lines, "bars": bars}


def batch(pair: Pair, options: argparse.Namespace, temperature: float) -> dict[str, Any]:
    """Several rows, each accepted its own number of guesses."""
    contenders = plain_and_drafted(pair, options.length, temperature, options.tokens)
    batches = [acceptance.held_out_prompts(options.batch)]
    places = [tensor.data_ptr() for tensor in pair.target.decoder.cache.tensors]
    with counting_compilations() as compilations:
        runs = take_turns(contenders, batches, options.rounds)
    moved = places != [tensor.data_ptr() for tensor in pair.target.decoder.cache.tensors]
    print(f"\nbatch {options.batch}, temperature {temperature}: {options.tokens} new tokens a row")
    lines = table(runs, BATCH_WIDTHS)
    print(f"    compilations: {len(compilations)}; caches moved: {moved}")
    own = [line for line in lines if "formula" in line]
    best = max(own, key=lambda line: line["tokens_per_second"])
    chosen = next((line for line in own if line["name"] == "k = adaptive"), best)
    bars = [judge(f"{chosen['name']}, of plain decoding", chosen["times_plain"], "batch")]
    return {
        "temperature": temperature,
        "lines": lines,
        "compilations": len(compilations),
        "caches_moved": moved,
        "bars": bars,
    }


class counting_compilations:  # noqa: N801  # reads as a phrase behind ``with``
    """Every graph that is traced and every program that is compiled inside."""

    def __enter__(self) -> list[str]:
        """The list they go into."""
        import torch._inductor

        self._found: list[str] = []
        self._places = [
            (torch._inductor, "aoti_compile_and_package"),
            (torch._dynamo.convert_frame, "_compile"),
        ]
        self._originals = [getattr(module, name) for module, name in self._places]
        for (module, name), original in zip(self._places, self._originals, strict=True):
            setattr(module, name, functools.partial(self._note, original))
        return self._found

    def _note(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._found.append(original.__name__)
        return original(*args, **options)

    def __exit__(self, *error: object) -> None:
        for (module, name), original in zip(self._places, self._originals, strict=True):
            setattr(module, name, original)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--length", nargs="+", default=["1", "2", "4", "8", "adaptive"])
    parser.add_argument("--temp", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument(
        "--only", nargs="+", choices=("row", "adversarial", "batch"), default=["row", "adversarial", "batch"]
    )
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--adversarial-tokens", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=pathlib.Path, help="folder that keeps compiled decoders")
    parser.add_argument("--quick", action="store_true", help="few prompts, tokens and rounds")
    options = parser.parse_args()
    if options.quick:
        options.prompts, options.tokens, options.adversarial_tokens, options.rounds = 2, 48, 96, 1
    return options


def main() -> None:
    """Measure, and print tables and the same as one line of JSON."""
    options = parsed()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    print(
        f"{platform.processor() or platform.machine()}, {options.threads} threads, torch {torch.__version__},"
    )
    print(f"transformers {transformers.__version__}, {options.dtype}")
    both = models(options.dtype)
    sizes = [model.num_parameters() for model in both]
    print(f"target: the bundled one grown to {SMOLLM2_135M}: {sizes[0]:,} weights, the same function;")
    print(f"draft: the bundled one, {sizes[1]:,} weights, {sizes[1] / sizes[0]:.1%} of the target's")
    results: dict[str, Any] = {"dtype": options.dtype, "threads": options.threads}

    def pair(rows: int, widths: tuple[int, ...]) -> Pair:
        return Pair(
            both,
            Watched(compiled(both[0], "target", widths, rows, options.cache)),
            # So small a model is done before a second thread has begun.
            Watched(compiled(both[1], "draft", DRAFT_WIDTHS, rows, options.cache, threads=1)),
        )

    if {"row", "adversarial"} & set(options.only):
        single = pair(1, WIDTHS)
        if "row" in options.only:
            results["row"] = [one_row(single, options, temperature) for temperature in options.temp]
        if "adversarial" in options.only:
            results["adversarial"] = [adversarial(single, options, t) for t in options.temp]
        del single
    if "batch" in options.only:
        several = pair(options.batch, BATCH_WIDTHS)
        results["batch"] = [batch(several, options, temperature) for temperature in options.temp]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
