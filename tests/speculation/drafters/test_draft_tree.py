"""Drafting a tree with a smaller model."""

import random

import pytest
import torch

from decodekit.decoding import EndOfSequence, Generator, Greedy, MaxNewTokens, Sample, StopTokens
from decodekit.processors import NoRepeatNgram, RepetitionPenalty, Temperature, TopK
from decodekit.speculation import AdaptiveLength, DraftModel, DraftTree, SpeculativeGenerator, Tree
from decodekit.testing import ScriptedDecoder

VOCAB = 11
TREES = [
    Tree.comb(3, 2, 2),
    Tree.of_children(2, 2, 2),
    Tree.of_children(4),
    Tree.comb(1, 1, 1, 1),
    Tree((-1, 0, -1, 2, 2, 4)),  # the second branch is the longer
    Tree.of_children(3, 1, 1),
]


def table(seed: int, like: torch.Tensor | None = None) -> torch.Tensor:
    """Logits of a scripted model, optionally close to another's."""
    rng = torch.Generator().manual_seed(seed)
    new = torch.randn(53, VOCAB, generator=rng) * 1.5
    return new if like is None else like + 0.5 * new


def scripted(logits: torch.Tensor, rows: int = 3, tree: int = 24, max_length: int = 48) -> ScriptedDecoder:
    """A decoder that scores trees."""
    widths = (8, tree) if tree > 8 else (tree,)
    return ScriptedDecoder(
        logits, rows, max_length, widths=(1, 4, 16), scored_width=4, tree_widths=widths if tree else ()
    )


class TestDraftTree:
    @pytest.mark.mostly_slow(every=6)
    @pytest.mark.parametrize("tree", TREES, ids=str)
    def test_changes_nothing(self, tree: Tree) -> None:
        """Same tokens and finish reasons as plain decoding, in 60 ragged batches."""
        accepted = 0
        for seed in range(60):
            dice = random.Random(seed)
            target = table(seed)
            prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 40))] for _ in range(3)]
            chains = [None, Temperature(0.7) | TopK(5), RepetitionPenalty(1.3), NoRepeatNgram(2)]
            parts = {
                "processors": chains[seed % 4],
                "sampler": Greedy() if seed % 3 == 0 else Sample(seed),
                "stop": [MaxNewTokens(12), EndOfSequence(0) | MaxNewTokens(20), StopTokens([3, 4])][seed % 3],
            }
            plain = Generator(scripted(target), **parts)(prompts)
            drafter = DraftTree(scripted(table(seed + 1, target)), tree)
            fast = SpeculativeGenerator(
                scripted(target), drafter, num_draft_tokens=dice.randint(1, 4), **parts
            )(prompts)
            accepted += sum(fast.statistics.accepted)

            assert (plain.ids, plain.finishes) == (fast.ids, fast.finishes), seed
        assert accepted > 100

    def test_first_branch_is_the_chain(self) -> None:
        """With one child each it equals DraftModel: same accepted tokens, same number of forwards."""
        target = table(0)
        parts = {"sampler": Sample(4), "stop": MaxNewTokens(30), "num_draft_tokens": 3}
        chain = SpeculativeGenerator(scripted(target), DraftModel(scripted(table(1, target))), **parts)
        tree = SpeculativeGenerator(
            scripted(target), DraftTree(scripted(table(1, target)), Tree.comb(1, 1, 1)), **parts
        )
        a, b = chain([[1, 2], [3]]), tree([[1, 2], [3]])

        assert (a.ids, a.statistics.accepted, a.statistics.drafted, a.statistics.forwards) == (
            b.ids,
            b.statistics.accepted,
            b.statistics.drafted,
            b.statistics.forwards,
        )

    @pytest.mark.slow
    def test_siblings_raise_what_stands(self) -> None:
        """More children, more accepted: a chain, then its siblings, then all branches."""
        kept = []
        for tree in (Tree.comb(1, 1, 1), Tree.comb(3, 3, 3), Tree.of_children(3, 3, 1)):
            lengths = []
            for seed in range(20):
                target = table(seed)
                generator = SpeculativeGenerator(
                    scripted(target),
                    DraftTree(scripted(table(seed + 1, target)), tree),
                    sampler=Sample(seed),
                    stop=MaxNewTokens(30),
                    num_draft_tokens=3,
                )
                lengths.append(generator([[1], [2], [3]]).statistics.mean_accepted_length)
            kept.append(sum(lengths) / len(lengths))

        assert kept == sorted(kept)
        assert kept[0] + 0.3 < kept[1] < kept[2] - 0.05

    def test_a_perfect_draft_is_accepted_along_its_first_branch(self) -> None:
        """Then nothing is fed twice: one forward of the target per step."""
        target = table(0)
        generator = SpeculativeGenerator(
            scripted(target, rows=1),
            DraftTree(scripted(target, rows=1), Tree.comb(2, 2, 2, 2)),
            sampler=Sample(1),
            stop=MaxNewTokens(41),
        )
        statistics = generator([5]).statistics

        assert 5.0 == statistics.mean_accepted_length
        assert 9 == statistics.forwards

    def test_up_to_the_last_position(self) -> None:
        """Near the end of the cache the tree loses its deeper levels, and no row ends early."""
        target = table(2)
        for length in range(1, 20):
            plain = Generator(scripted(target, max_length=20), stop=MaxNewTokens(99))([1] * length)
            fast = SpeculativeGenerator(
                scripted(target, max_length=20),
                DraftTree(scripted(table(3, target), max_length=20), Tree.of_children(2, 2, 1)),
                stop=MaxNewTokens(99),
            )([1] * length)

            assert (plain.ids, plain.finishes) == (fast.ids, fast.finishes)

    def test_the_smallest_gap_is_plain_decodings(self) -> None:
        """That of the accepted tokens, independent of other branches."""
        for seed in range(10):
            target, parts = (
                table(seed),
                {"sampler": Sample(seed), "stop": MaxNewTokens(15), "record_gap": True},
            )
            drafter = DraftTree(scripted(table(seed + 1, target)), Tree.of_children(3, 2))
            plain = Generator(scripted(target), **parts)([[1, 2, 3], [4]]).statistics
            fast = SpeculativeGenerator(scripted(target), drafter, **parts)([[1, 2, 3], [4]]).statistics

            assert plain.smallest_gap == fast.smallest_gap

    def test_with_an_adaptive_length(self) -> None:
        """The depth may be decided step by step."""
        target = table(5)
        drafter = DraftTree(scripted(table(6, target)), Tree.comb(2, 2, 1))
        parts = {"sampler": Sample(2), "stop": MaxNewTokens(25)}
        fast = SpeculativeGenerator(scripted(target), drafter, num_draft_tokens=AdaptiveLength(3), **parts)

        assert Generator(scripted(target), **parts)([[1], [2, 3]]).ids == fast([[1], [2, 3]]).ids

    def test_requirements_are_checked_on_construction(self) -> None:
        """The target must score trees this wide, and so must the draft unless the tree is a comb."""
        small, wide = scripted(table(1), tree=0), scripted(table(1))
        comb, bush = Tree.comb(2, 2), Tree.of_children(2, 2)

        with pytest.raises(
            ValueError, match=r"'decoder' must score trees of 4 draft tokens.*tree_widths=\(5,\)"
        ):
            SpeculativeGenerator(small, DraftTree(wide, comb))
        with pytest.raises(ValueError, match=r"the draft must score trees 3 wide.*or take a Tree.comb\(\)"):
            SpeculativeGenerator(wide, DraftTree(small, bush))
        with pytest.raises(ValueError, match="'exact_width' must be False with trees"):
            SpeculativeGenerator(wide, DraftTree(small, comb), exact_width=True)
        with pytest.raises(ValueError, match=r"'sampler' must have top_choices\(\)"):
            SpeculativeGenerator(wide, DraftTree(small, comb), sampler=lambda logits, _: logits.argmax(-1))
        SpeculativeGenerator(wide, DraftTree(small, comb))
