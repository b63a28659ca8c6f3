"""Trees of guesses, against walking them guess by guess."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from decodekit.decoding import Draft, History
from decodekit.decoding.draft_trees import chosen_branch, depths, pruned, tokens_ahead, tree_window
from decodekit.decoding.scores import Scores

VOCAB = 4


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """Up to three rows of up to seven guesses, -1 behind a row's last; siblings may be alike."""
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


def path(draft: Draft, row: int, guess: int) -> list[int]:
    """The guesses' numbers from the root to *guess*."""
    assert draft.parents is not None
    way = []
    while guess >= 0:
        way.append(guess)
        guess = int(draft.parents[row, guess])
    return way[::-1]


def words(draft: Draft, row: int) -> list[tuple[int, ...]]:
    """What each guess of a row says from the root on."""
    ids = draft.ids[row].tolist()
    return [tuple(ids[g] for g in path(draft, row, guess)) for guess in range(len(ids)) if ids[guess] >= 0]


class TestDepths:
    @given(trees())
    def test_count_the_way_to_the_root(self, draft: Draft) -> None:
        """A guess is as many tokens ahead as there are guesses on its way, itself among them."""
        expected = [
            [len(path(draft, row, guess)) * (word >= 0) for guess, word in enumerate(draft.ids[row].tolist())]
            for row in range(len(draft.ids))
        ]

        assert expected == depths(draft).tolist()
        assert [max(map(len, words(draft, row)), default=0) for row in range(len(draft.ids))] == tokens_ahead(
            draft
        ).tolist()


class TestPruned:
    @given(trees(), st.randoms(), st.integers(0, 8))
    def test_keeps_what_stands_on_kept_guesses(self, draft: Draft, random: object, most: int) -> None:
        """A guess stays if it and all on its way fit; the first ones do, in order, and -1 stands behind."""
        fits = torch.tensor(
            [[bool(random.getrandbits(1)) for _ in row] for row in draft.ids.tolist()],  # type: ignore[attr-defined]
            dtype=torch.bool,
        ).reshape(draft.ids.shape)
        left = pruned(draft, fits & (draft.ids >= 0), most)
        for row in range(len(draft.ids)):
            real = [guess for guess in range(draft.ids.shape[1]) if draft.ids[row, guess] >= 0]
            stay = [g for g in real if all(bool(fits[row, on]) for on in path(draft, row, g))]
            stay = stay[:most]
            expected = [tuple(int(draft.ids[row, on]) for on in path(draft, row, g)) for g in stay]

            assert expected == words(left, row)
            assert [-1] * (left.ids.shape[1] - len(stay)) == left.ids[row, len(stay) :].tolist()


class TestTreeWindow:
    @given(trees(), st.data())
    def test_each_column_has_its_own_way_before_it(self, draft: Draft, data: st.DataObject) -> None:
        """Column 0 follows the text, the others the text and what was guessed on the way to them."""
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


class TestChosenBranch:
    @given(trees(), st.randoms())
    def test_follows_the_choices_as_far_as_they_were_guessed(self, draft: Draft, random: object) -> None:
        """From each column to the first child that says what was chosen there, until there is none."""
        batch, n = draft.ids.shape
        choices = torch.tensor(
            [[random.randrange(-1, VOCAB) for _ in range(n + 1)] for _ in range(batch)]  # type: ignore[attr-defined]
        ).reshape(batch, n + 1)
        branch = chosen_branch(draft, choices)
        logits = torch.rand(batch, n + 1, VOCAB)
        scores = branch.scores(Scores(lambda: logits)).logits
        assert draft.parents is not None
        for row in range(batch):
            at, columns = 0, [0]
            while True:
                children = [
                    guess
                    for guess in range(n)
                    if draft.ids[row, guess] >= 0
                    and draft.parents[row, guess] == at - 1
                    and draft.ids[row, guess] == choices[row, at]
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
            assert torch.equal(choices[row, columns], branch.of(choices)[row, : depth + 1])
            assert torch.equal(logits[row, columns], scores[row, : depth + 1])
