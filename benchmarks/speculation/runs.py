"""Contenders of the benchmark of speculation, and their turns."""

import itertools
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import acceptance
import attrs
import torch
from grow import SMOLLM2_135M, grow
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from decodekit.bench.comparison_files import backend_digest
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
    weights: str | None = None,
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
        return compile_decoder(model, target="cpu", threads=threads, weights=weights, **shape)
    # Programs of other sources are not to be timed as these.
    folder = (
        cache / f"{name}-{dtype}-{weights}-{backend_digest()}-b{batch}-w{'_'.join(map(str, shape['widths']))}"
    )
    if not folder.exists():
        compile_decoder(model, target="cpu", weights=weights, **shape).save(folder)
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
