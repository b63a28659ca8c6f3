"""Token trees, compared with walking them token by token."""

import numpy as np
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Draft, History
from decodekit.decoding.scores import Scores
from decodekit.decoding.trees import (
    Bools,
    Ints,
    depths,
    draft_depths,
    first_branch,
    paths,
    pruned,
    target_branch,
    tokens_ahead,
    tree_window,
)

# 0 - 1 - 4        and, in the other row, two roots
#   \\ 2 - 3
# 5
IDS = np.array([[7, 7, 7, 7, 7, 7], [7, 7, -1, -1, -1, -1]])
PARENTS = np.array([[-1, 0, 0, 2, 1, -1], [-1, -1, 9, 9, -9, 5]])


@st.composite
def token_trees(draw: st.DrawFn) -> tuple[Ints, Ints]:
    """Ids and parents of a few rows, with arbitrary values under the padding."""
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    ids, parents = np.full((rows, width), -1), np.full((rows, width), 99)
    for row in range(rows):
        for column in range(draw(st.integers(0, width))):
            ids[row, column] = 3
            parents[row, column] = draw(st.integers(-1, column - 1))
    return ids, parents


def ancestors(parents: Ints, row: int, column: int) -> list[int]:
    """By definition: a column, and before it the ancestors of its parent and that."""
    parent = int(parents[row, column])
    return [*(ancestors(parents, row, parent) if parent >= 0 else []), column]


class TestArraysByHand:
    def test_depths(self) -> None:
        """Roots have none; parents under padding are ignored."""
        assert [[0, 1, 1, 2, 2, 0], [0] * 6] == depths(IDS, PARENTS).tolist()

    def test_paths(self) -> None:
        """Every column is on its own path."""
        path = paths(IDS, PARENTS)

        assert [0, 2, 3] == np.flatnonzero(path[0, 3]).tolist()
        assert [5] == np.flatnonzero(path[0, 5]).tolist()
        assert [1] == np.flatnonzero(path[1, 1]).tolist()

    def test_first_branch(self) -> None:
        """First children, not the longest path, and not the next column."""
        branch = first_branch(IDS, PARENTS)

        assert [0, 1, 4] == np.flatnonzero(branch[0]).tolist()
        assert [0] == np.flatnonzero(branch[1]).tolist()
        assert not first_branch(np.full((1, 2), -1), np.array([[-1, 0]])).any()


@given(token_trees())
def test_arrays_agree_with_the_definition(tree: tuple[Ints, Ints]) -> None:
    """Column by column, for any tree and padding."""
    ids, parents = tree
    found: tuple[Ints, Bools, Bools] = depths(ids, parents), paths(ids, parents), first_branch(ids, parents)
    for row in range(len(ids)):
        branch, tip = [], -1
        real = np.flatnonzero(ids[row] >= 0).tolist()
        while children := [column for column in real if parents[row, column] == tip]:
            tip = children[0]
            branch.append(tip)

        assert branch == np.flatnonzero(found[2][row]).tolist()
        for column in real:
            assert ancestors(parents, row, column) == np.flatnonzero(found[1][row, column]).tolist()
            assert len(ancestors(parents, row, column)) - 1 == found[0][row, column]


VOCAB = 4


@st.composite
def draft_trees(draw: st.DrawFn) -> Draft:
    """Up to three rows of up to seven draft tokens, -1 behind a row's last; siblings may be equal."""
    batch, n = draw(st.integers(1, 3)), draw(st.integers(0, 7))
    rows = [draw(st.lists(st.integers(0, VOCAB - 1), max_size=n)) for _ in range(batch)]
    parents = [[draw(st.integers(-1, i - 1)) for i in range(len(row))] for row in rows]
    longest = max(map(len, rows))
    pad = [[-1] * (longest - len(row)) for row in rows]
    ids = [row + rest for row, rest in zip(rows, pad, strict=True)]
    follows = [row + rest for row, rest in zip(parents, pad, strict=True)]
    return Draft(
        torch.tensor(ids, dtype=torch.int64).reshape(batch, longest),
        parents=torch.tensor(follows, dtype=torch.int64).reshape(batch, longest),
    )


def path(draft: Draft, row: int, node: int) -> list[int]:
    """The draft tokens' numbers from the root to *node*."""
    assert draft.parents is not None
    numbers = []
    while node >= 0:
        numbers.append(node)
        node = int(draft.parents[row, node])
    return numbers[::-1]


def words(draft: Draft, row: int) -> list[tuple[int, ...]]:
    """The tokens from the root to each draft token of a row."""
    ids = draft.ids[row].tolist()
    return [tuple(ids[i] for i in path(draft, row, node)) for node in range(len(ids)) if ids[node] >= 0]


class TestDepths:
    @given(draft_trees())
    def test_count_the_path_to_the_root(self, draft: Draft) -> None:
        """A draft token is as many tokens ahead as its path has draft tokens, itself included."""
        expected = [
            [len(path(draft, row, node)) * (token >= 0) for node, token in enumerate(draft.ids[row].tolist())]
            for row in range(len(draft.ids))
        ]

        assert expected == draft_depths(draft).tolist()
        assert [max(map(len, words(draft, row)), default=0) for row in range(len(draft.ids))] == tokens_ahead(
            draft
        ).tolist()


class TestPruned:
    @given(draft_trees(), st.randoms(), st.integers(0, 8))
    def test_keeps_descendants_of_kept_tokens(self, draft: Draft, random: object, most: int) -> None:
        """A draft token stays if its whole path fits; the first ones do, in order, with -1 after them."""
        fits = torch.tensor(
            [[bool(random.getrandbits(1)) for _ in row] for row in draft.ids.tolist()],  # type: ignore[attr-defined]
            dtype=torch.bool,
        ).reshape(draft.ids.shape)
        left = pruned(draft, fits & (draft.ids >= 0), most)
        for row in range(len(draft.ids)):
            real = [node for node in range(draft.ids.shape[1]) if draft.ids[row, node] >= 0]
            stay = [g for g in real if all(bool(fits[row, on]) for on in path(draft, row, g))]
            stay = stay[:most]
            expected = [tuple(int(draft.ids[row, on]) for on in path(draft, row, g)) for g in stay]

            assert expected == words(left, row)
            assert [-1] * (left.ids.shape[1] - len(stay)) == left.ids[row, len(stay) :].tolist()


class TestTreeWindow:
    @given(draft_trees(), st.data())
    def test_each_column_has_its_own_path_before_it(self, draft: Draft, data: st.DataObject) -> None:
        """Column 0 follows the text, the others the text and the draft tokens on their path."""
        batch = len(draft.ids)
        texts = [data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5)) for _ in range(batch)]
        ids = torch.full((batch, 1, 5 + 7), 9)
        for row, text in enumerate(texts):
            ids[row, 0, : len(text)] = torch.tensor(text)
        length = torch.tensor([[len(text)] for text in texts])
        before = ids.clone()
        window = tree_window(History(ids, length, length[:, 0], torch.arange(batch)), draft)

        assert torch.equal(before, ids)
        for row, text in enumerate(texts):
            said = [(), *words(draft, row)]
            for column, word in enumerate(said):
                assert [*text, *word] == window.before(row, column).tolist()

    def test_the_rest_of_the_capacity_is_not_copied(self) -> None:
        """For each node, of a text of few tokens."""
        length = torch.tensor([3])
        now = History(torch.zeros(1, 1, 10_001).long(), length[:, None], length, torch.zeros(1).long())
        draft = Draft(torch.tensor([[5, 6, 7]]), parents=torch.tensor([[-1, 0, 0]]))

        assert 5 == tree_window(now, draft).ids.shape[-1]


class TestTargetBranch:
    @given(draft_trees(), st.randoms())
    def test_follows_the_target_tokens_as_far_as_they_were_drafted(
        self, draft: Draft, random: object
    ) -> None:
        """From each column to the first child with the token sampled there, until there is none."""
        batch, n = draft.ids.shape
        target_tokens = torch.tensor(
            [[random.randrange(-1, VOCAB) for _ in range(n + 1)] for _ in range(batch)]  # type: ignore[attr-defined]
        ).reshape(batch, n + 1)
        branch = target_branch(draft, target_tokens)
        logits = torch.rand(batch, n + 1, VOCAB)
        scores = branch.scores(Scores(lambda: logits)).logits
        assert draft.parents is not None
        for row in range(batch):
            at, columns = 0, [0]
            while True:
                children = [
                    node
                    for node in range(n)
                    if draft.ids[row, node] >= 0
                    and draft.parents[row, node] == at - 1
                    and draft.ids[row, node] == target_tokens[row, at]
                ]
                if not children:
                    break
                at = children[0] + 1
                columns.append(at)
            depth = len(columns) - 1

            assert branch.columns is not None
            assert at == branch.column(row, depth)
            assert columns + [at] * (branch.columns.shape[1] - depth - 1) == branch.columns[row].tolist()
            assert [int(draft.ids[row, c - 1]) for c in columns[1:]] == branch.draft.ids[row, :depth].tolist()
            assert (branch.draft.ids[row, depth:] == -1).all()
            assert torch.equal(target_tokens[row, columns], branch.gather(target_tokens)[row, : depth + 1])
            assert torch.equal(logits[row, columns], scores[row, : depth + 1])
