"""What cannot share a decoder is what a batcher refuses, or what a request of one prompt fails with."""

import re
from typing import Any

import pytest
import torch

from decodekit.decoding import Batcher, Generator, Guided, MaxNewTokens, Sample
from decodekit.decoding.serving.sharing import reason_not_to_share
from decodekit.processors import PrefixFunction, Temperature, TopK, from_transformers
from decodekit.speculation import DraftModel, DraftTree, PromptLookup, Tree
from decodekit.testing import ScriptedDecoder

TABLE = torch.randn(31, 9, generator=torch.Generator().manual_seed(0))


def decoder(**options: Any) -> ScriptedDecoder:
    """Of two rows."""
    return ScriptedDecoder(TABLE, batch_size=2, **options)


class Lockstep(ScriptedDecoder):
    """A decoder of several processes."""

    in_lockstep = True


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"processors": Temperature(0.5) | TopK(3), "sampler": Sample(1)},
        {"processors": lambda logits, history: logits},
        {"processors": PrefixFunction(lambda row, ids: [row, 5])},
        {"processors": from_transformers(lambda ids, scores: scores.flip(1))},
        {"drafter": PromptLookup()},
        {"drafter": DraftModel(decoder())},
    ],
)
def test_what_can_be_shared(parts: dict[str, Any]) -> None:
    """A batcher gives what the generator gives."""
    generator = Generator(decoder(), stop=MaxNewTokens(4), **parts)

    assert reason_not_to_share(generator.parts, generator.decoder) is None
    assert generator([1, 2]).ids == Batcher(decoder()).submit(generator.parts, [1, 2]).result().ids


@pytest.mark.parametrize(
    ("parts", "reason", "refusal"),
    [
        (
            {"processors": Temperature([0.5, 1.0]), "sampler": Sample(1)},
            "Temperature has a value for each row",
            "'temperature' must have one value per row: got 2 for 1 rows",
        ),
        (
            {"processors": TopK(3) | TopK([1, 2]), "sampler": Sample(1)},
            "TopK has a value for each row",
            "'k' must have one value per row: got 2 for 1 rows",
        ),
        (
            {"stop": MaxNewTokens([1, 2])},
            "'n' must be one number in a request of one row, not one for each",
            "'n' must be one number in a request of one row, not one for each row: got 2",
        ),
        (
            {"drafter": DraftTree(decoder(tree_widths=(4,)), Tree.comb(2, 1))},
            "DraftTree proposes draft trees",
            "requests that share a decoder take no draft trees",
        ),
    ],
)
def test_what_cannot(parts: dict[str, Any], reason: str, refusal: str) -> None:
    """The reason, and the batcher's own refusal."""
    generator = Generator(decoder(tree_widths=(4,)), **parts)

    assert str(reason_not_to_share(generator.parts, generator.decoder)).startswith(reason)
    with pytest.raises(ValueError, match=re.escape(refusal)):
        Batcher(decoder(tree_widths=(4,))).submit(generator.parts, [1, 2]).result()


def test_a_decoder_with_something_of_each_row() -> None:
    """Such as a negative prompt."""
    guided = Guided(ScriptedDecoder(TABLE, batch_size=4), 1.5, [[1], [2]])

    assert "of its own for each row" in str(reason_not_to_share(Generator(guided).parts, guided))


def test_a_decoder_in_lockstep() -> None:
    """Its processes would see the requests at different steps."""
    lockstep = Lockstep(TABLE, batch_size=2)

    assert "lockstep" in str(reason_not_to_share(Generator(lockstep).parts, lockstep))
    with pytest.raises(ValueError, match="lockstep"):
        Batcher(lockstep)
