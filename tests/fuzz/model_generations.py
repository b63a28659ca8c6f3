"""Random generations over tiny models in float64."""

import random
from functools import cache
from typing import Any

import torch

from decodekit.decoding import EndOfSequence, Generation, Generator, Greedy, MaxNewTokens, Sample
from decodekit.decoding.protocols import Drafter
from decodekit.neuron_backend import StaticDecoder
from decodekit.speculation import DraftModel, DraftTree, PromptLookup, SpeculativeGenerator, Tree

from ..conftest import VOCAB, tiny
from .parts_of_generations import random_chain

ARCHITECTURES = ("llama", "gpt2", "qwen3")


@cache
def decoder(name: str, rows: int, number: int = 0) -> StaticDecoder:
    """An eager decoder of that model; those of other numbers have caches of their own."""
    model = tiny(name, torch.float64)
    return StaticDecoder(
        model, batch_size=rows, max_length=40, widths=(1, 5, 16), scored_width=5, tree_widths=(8,)
    )


def drafters(name: str) -> dict[str, Drafter]:
    """The model itself, which is always right, one of another opinion, and none."""
    itself = decoder(name, 3, 1)
    return {
        "itself": DraftModel(itself),
        "another": DraftModel(decoder(ARCHITECTURES[ARCHITECTURES.index(name) - 1], 3, 1)),
        "lookup": PromptLookup(),
        "tree": DraftTree(itself, Tree.comb(2, 2)),
    }


def outcome_of(result: Generation) -> list[tuple[list[int], str | None]]:
    """Ids and finishes. Log-probabilities may round otherwise in another program."""
    return list(zip(result.ids, result.finish_reasons, strict=True))


def check_model(seed: int) -> str:
    """A row is the row alone, a second call the first, and a draft changes nothing; the kind of the case."""
    dice = random.Random(seed)
    name, batch = dice.choice(ARCHITECTURES), dice.randint(1, 3)
    prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 40))] for _ in range(batch)]
    streams = [dice.randrange(100) for _ in range(batch)]
    chain = random_chain(dice, batch)
    parts: dict[str, Any] = {
        "sampler": Greedy() if dice.random() < 0.3 else Sample(seed),
        "stop": EndOfSequence(dice.randrange(VOCAB)) | MaxNewTokens(dice.choice([4, 16, 99])),
    }
    every = range(batch)
    plain = Generator(decoder(name, 3), processors=chain(every), **parts)
    expected = outcome_of(plain(prompts, streams))
    assert expected == outcome_of(plain(prompts, streams)), f"{name}, second call: row of {prompts}"
    for row in every:
        alone = Generator(decoder(name, 1), processors=chain([row]), **parts)
        found = outcome_of(alone(prompts[row], streams[row : row + 1]))
        assert [expected[row]] == found, f"{name}, row alone: row {row} is {found}, not {expected[row]}"
    for kind, drafter in drafters(name).items():
        fast = SpeculativeGenerator(
            decoder(name, 3), drafter, processors=chain(every), num_draft_tokens=dice.randint(1, 4), **parts
        )
        found = outcome_of(fast(prompts, streams))
        assert expected == found, f"{name}, draft of {kind}: row outcomes {found}, not {expected}"
    return "model in float64"
