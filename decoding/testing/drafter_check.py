"""The contract checks of a drafter."""

from typing import Any

import attrs
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import ChecksTarget, ForeseesTokens, GivesEvidence, GrowsTrees
from ..protocols import DecoderShape, Draft, Drafter
from ..sampling.pipeline import SamplingPipeline
from ..sampling.sample import Sample
from .assertions import require
from .trial_window import check_sizes, copy_of, require_history_unchanged

_STEPS = 10

_DRAWS = 64
"""How often draft tokens are drawn again, to compare them with their scores."""

_DEVIATIONS = 6
"""How many standard deviations a token may be drawn more or less often than its scores say."""


def check_drafter(
    drafter: Drafter,
    *,
    vocab_size: int = 16,
    batch_size: int = 3,
    draft_length: int = 4,
    max_length: int = 64,
    seed: int = 0,
) -> None:
    """
    Check *drafter* against the contract of :class:`~decodekit.decoding.protocols.Drafter`.

    Texts with repetitions grow as in a generation: some draft tokens are accepted, other tokens follow, rows
    idle, and a row begins another text. Each proposal must be a :class:`~..protocols.Draft` of at most the
    allowed draft tokens, all ids of the vocabulary up to -1, and must leave the history and the budget alone.
    A drafter that gives evidence (:class:`~..optional_protocols.GivesEvidence`) declares that it is a
    function of the history: it must propose the same again, whatever its neighbours are. A chain's first
    tokens are drawn often, and must follow the scores that come with them. The tokens that the drafter
    foresees (:class:`~..optional_protocols.ForeseesTokens`) are its drafts' first.

    Args:
        drafter: Any drafter, whose own decoder, if any, has *batch_size* rows.

        vocab_size: The target's vocabulary.

        batch_size: Rows.

        draft_length: The largest budget of a row; of a tree, its depth.

        max_length: The target's positions of a row.

        seed: Seed of the random texts.

    Raises:
        AssertionError: A rule is broken; the message says what was fed, what came, and the rule.

        TypeError: *drafter* has no ``propose``.

        ValueError: An option is out of range, or the drafter does not fit the target.
    """
    if not isinstance(drafter, Drafter) or isinstance(drafter, type):
        raise TypeError(f"'drafter' must have propose(history, budget, sample): got {drafter!r}")
    check_sizes(
        seed, vocab_size=vocab_size, batch_size=batch_size, draft_length=draft_length, max_length=max_length
    )
    least = 6 + 2 * (draft_length + 1)
    if max_length < least:
        raise ValueError(f"'max_length' must be >= {least}: got {max_length}")
    if isinstance(drafter, ChecksTarget):
        widths = sorted({1, draft_length + 1})
        drafter.check_target(DecoderShape(batch_size, max_length, vocab_size, widths, widths[-1]))
    random = torch.Generator().manual_seed(seed)
    trial = _Trial(drafter, vocab_size, draft_length)
    for draft_scores in (False, True):
        texts = [_text(vocab_size, random) for _ in range(batch_size)]
        prompt = [len(text) for text in texts]
        for step in range(_STEPS):
            if step == _STEPS // 2:
                texts[0] = _text(vocab_size, random)
                prompt[0] = len(texts[0])
            longest = max(map(len, texts))
            if longest + draft_length + 1 > max_length:
                break
            budget = torch.randint(0, draft_length + 1, (batch_size,), generator=random)
            budget[step % batch_size] = draft_length
            history = _history(texts, prompt, max_length)
            draft = trial.propose(history, budget, draft_scores)
            trial.repeat(history, budget, draft, draft_scores, random)
            for row, text in enumerate(texts):
                if budget[row]:
                    proposed = _kept(draft, row)[
                        : int(torch.randint(0, draft_length + 1, (1,), generator=random))
                    ]
                    text += [*proposed, int(torch.randint(0, min(vocab_size, 5), (1,), generator=random))]
    trial.draw(_history(texts, prompt, max_length))


class _Trial:
    """The rules of :class:`~..protocols.Drafter`, tried on one history at a time."""

    def __init__(self, drafter: Drafter, vocab_size: int, draft_length: int) -> None:
        self.drafter = drafter
        self.vocab_size = vocab_size
        self.draft_length = draft_length

    def propose(self, history: History, budget: Tensor, draft_scores: bool) -> Draft:
        """A proposal, checked."""
        before, allowed = copy_of(history), budget.clone()
        sample = SamplingPipeline(None, Sample(seed=0), draft_scores)
        draft = self.drafter.propose(history, budget, sample)
        texts = [before.before(row, 0).tolist() for row in range(len(allowed))]
        fed = f"fed the texts {texts} and the budget {allowed.tolist()}"
        require_history_unchanged(history, before, "a drafter", fed)
        require(
            torch.equal(budget, allowed),
            f"a drafter must not write into its budget: {fed}; came: {budget.tolist()}",
        )
        self.check_form(draft, len(allowed), fed)
        for row, most in enumerate(allowed.tolist()):
            self.check_row(draft, row, most, fed)
        return draft

    def check_form(self, draft: Draft, rows: int, fed: str) -> None:
        """Types and shapes."""
        rule = f"a drafter must propose a Draft of int64 ids [{rows}, k]: {fed}"
        ids = draft.ids if isinstance(draft, Draft) else None
        require(isinstance(ids, Tensor), f"{rule}; came: {draft!r}")
        assert isinstance(ids, Tensor)
        came = f"{rule}; came: {ids.dtype} {list(ids.shape)}"
        require(ids.dtype == torch.int64 and ids.ndim == 2 and len(ids) == rows, came)
        if draft.scores is not None:
            shape = [*ids.shape, self.vocab_size]
            came = f"a draft's scores must be {shape}: {fed}; came: {list(draft.scores.shape)}"
            require(list(draft.scores.shape) == shape, came)
            self.check_scores(draft.scores[ids >= 0], ids[ids >= 0], fed)
        parents = draft.parents
        if parents is not None:
            rule = f"each parent must be int64, -1 or smaller than its own column: {fed}"
            came = f"{rule}; came: {parents.dtype} {parents.tolist()}"
            require(parents.dtype == torch.int64 and parents.shape == ids.shape, came)
            require(bool(((parents >= -1) & (parents < torch.arange(ids.shape[1]))).all()), came)
            declared = isinstance(self.drafter, GrowsTrees) and self.drafter.tree_nodes is not None
            rule = "a drafter that proposes trees must declare their size as 'tree_nodes'"
            require(declared, f"{rule}: {fed}; came: parents {parents.tolist()}")

    def check_scores(self, scores: Tensor, ids: Tensor, fed: str) -> None:
        """The scores ``[n, vocab]`` of draft tokens *ids*."""
        rule = f"a draft token's scores must be floating, not NaN or +inf, and finite of itself: {fed}"
        require(scores.is_floating_point(), f"{rule}; came: {scores.dtype}")
        own = scores.gather(-1, ids[:, None])[:, 0]
        for token in (~(scores < torch.inf).all(dim=-1) | (own == -torch.inf)).nonzero()[:, 0].tolist():
            require(False, f"{rule}; came: token {int(ids[token])} with {scores[token].tolist()}")

    def check_row(self, draft: Draft, row: int, most: int, fed: str) -> None:
        """The ids of one row."""
        ids = draft.ids[row].tolist()
        came = f"row {row}: {fed}; came: ids {ids}"
        rule = f"draft tokens must be ids of the vocabulary, 0 to {self.vocab_size - 1}, or -1 for none"
        require(all(-1 <= token < self.vocab_size for token in ids), f"{rule}, {came}")
        if draft.parents is None:
            count = len(_kept(draft, row))
            require(not any(token >= 0 for token in ids[count:]), f"-1 must end a row's draft, {came}")
            deepest = count
        else:
            parents, depth = draft.parents[row].tolist(), [0] * len(ids)
            for column, parent in enumerate(parents):
                depth[column] = 1 + (depth[parent] if parent >= 0 else 0)
            deepest = max((d for d, token in zip(depth, ids, strict=True) if token >= 0), default=0)
        rule = f"a drafter must propose at most its budget of {most} tokens (of a tree, its depth)"
        require(deepest <= most, f"{rule}, {came}")

    def draw(self, history: History) -> None:
        """Draw first draft tokens on many random streams, and compare their numbers with the scores."""
        rows = len(history.length)
        drawn, expected, variance = (torch.zeros(self.vocab_size, dtype=torch.float64) for _ in range(3))
        for draw in range(_DRAWS):
            streams = torch.arange(rows) + rows * draw
            draft = self.propose(attrs.evolve(history, random_stream=streams), torch.ones_like(streams), True)
            if draft.scores is None or draft.parents is not None or not draft.ids.shape[1]:
                return
            drafted = draft.ids[:, 0] >= 0
            probabilities = draft.scores[drafted, 0].double().softmax(dim=-1)
            drawn += torch.bincount(draft.ids[drafted, 0], minlength=self.vocab_size)
            expected += probabilities.sum(dim=0)
            variance += (probabilities * (1 - probabilities)).sum(dim=0)
        deviations = (drawn - expected).abs() / variance.clamp(min=1.0).sqrt()
        token = int(deviations.argmax())
        require(
            float(deviations[token]) <= _DEVIATIONS,
            "draft tokens must be drawn from the softmax of their scores, since a verification relies on it: "
            f"{_DRAWS} proposals; came: token {token} {int(drawn[token])} times, expected "
            f"{float(expected[token]):.1f}",
        )

    def repeat(
        self, history: History, budget: Tensor, draft: Draft, draft_scores: bool, random: torch.Generator
    ) -> None:
        """If the drafter declares to be a function of the history: again, and beside other rows."""
        if not isinstance(self.drafter, GivesEvidence):
            return
        rule = "a drafter with evidence must be a function of the history"
        for row, strength in enumerate(_numbers(self.drafter.evidence(history, budget), len(budget))):
            kept = _kept(draft, row)
            came = f"came: evidence {strength} and the draft {kept}"
            fed = f"fed {history.before(row, 0).tolist()}, budget {int(budget[row])}"
            require(
                bool(strength) or not kept,
                f"evidence must be 0 only where there is no draft, row {row}: {fed}; {came}",
            )
        if isinstance(self.drafter, ForeseesTokens):
            self.compare_foresight(self.drafter, history, budget, draft)
        again = self.propose(history, budget, draft_scores)
        self.same(rule, history, draft, again, list(range(len(budget))))
        for row in range(len(budget)):
            texts = [
                history.before(other, 0).tolist() if other == row else _text(self.vocab_size, random)
                for other in range(len(budget))
            ]
            prompt = [
                int(history.prompt[row]) if other == row else len(text) for other, text in enumerate(texts)
            ]
            beside = _history(texts, prompt, history.ids.shape[-1])
            other_draft = self.propose(beside, budget, draft_scores)
            self.same(f"{rule} of a row, not of its neighbours", history, draft, other_draft, [row])

    def compare_foresight(
        self, drafter: ForeseesTokens, history: History, budget: Tensor, draft: Draft
    ) -> None:
        """Require that what *drafter* foresees are its evidence and the first tokens of *draft*."""
        evidence, first_tokens = (_numbers(each, len(budget)) for each in drafter.foresee(history, budget))
        expected = [(_kept(draft, row) or [-1])[0] for row in range(len(budget))]
        came = f"fed budgets {budget.tolist()}; came {evidence} and {first_tokens}"
        require(
            evidence == drafter.evidence(history, budget).tolist(),
            f"a drafter must foresee with the evidence that it gives: {came}",
        )
        require(
            first_tokens == expected,
            f"a drafter must foresee the first tokens of its drafts, {expected}: {came}",
        )

    def same(self, rule: str, history: History, expected: Draft, came: Draft, rows: list[int]) -> None:
        """Require equal chains in *rows*."""
        for row in rows:
            one, other = _kept(expected, row), _kept(came, row)
            text = history.before(row, 0).tolist()
            require(one == other, f"{rule}: fed {text} in row {row}; came: {other}, and before {one}")


def _numbers(answer: Any, rows: int) -> list[int]:
    """What a drafter says of each row, required to be a number of it."""
    is_tensor = isinstance(answer, Tensor)
    came = f"{list(answer.shape)} of {answer.dtype}" if is_tensor else repr(answer)
    require(
        is_tensor and answer.shape == (rows,) and answer.dtype == torch.int64,
        f"a drafter must give evidence and first tokens as int64 tensors [{rows}]; came: {came}",
    )
    numbers: list[int] = answer.tolist()
    return numbers


def _kept(draft: Draft, row: int) -> list[int]:
    """The draft tokens of a row up to -1; of a tree its first column and what directly follows it."""
    ids: list[int] = draft.ids[row].tolist()
    if draft.parents is not None:
        parents = draft.parents[row].tolist()
        chain = [column for column, parent in enumerate(parents) if parent == column - 1]
        ids = [ids[column] for column in chain if chain[: column + 1] == list(range(column + 1))]
    return ids[: ids.index(-1)] if -1 in ids else ids


def _text(vocab_size: int, random: torch.Generator) -> list[int]:
    """Three to six tokens, of which some repeat."""
    n = int(torch.randint(3, 7, (1,), generator=random))
    return torch.randint(0, min(vocab_size, 3), (n,), generator=random).tolist()


def _history(texts: list[list[int]], prompt: list[int], capacity: int) -> History:
    """The texts, -1 behind each."""
    ids = torch.full((len(texts), 1, capacity), -1)
    for row, text in enumerate(texts):
        ids[row, 0, : len(text)] = torch.tensor(text)
    length = torch.tensor([len(text) for text in texts])
    return History(ids, length[:, None], torch.tensor(prompt), torch.arange(len(texts)))
