"""The contract checks of a stop condition."""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from ..history import History
from ..protocols import Finish, StopCondition
from ..scores import Scores
from ..stopping.composition import begin, by_token, check_rows, most_new_tokens
from ..validation import token_ids
from .assertions import require
from .trial_window import check_sizes, copy_of, require_history_unchanged

_STEPS = 12


def check_stop(
    stop: StopCondition,
    *,
    vocab_size: int = 16,
    batch_size: int = 3,
    tokens: Sequence[int] = (),
    seed: int = 0,
) -> None:
    """
    Check *stop* against the contract of :class:`~decodekit.decoding.protocols.StopCondition`.

    Random texts are shown as a generation shows them, each row up to its stop: token by token, several
    tokens at a time, every step twice, and beside other rows. Each token must get the same code, and neither
    the scores nor the history that were shown may change. No row may go on beyond the most new tokens that
    the condition says. A condition with ``begin()`` begins anew for each of these runs. A limit of time must
    not be reached within the check.

    Args:
        stop: A condition or a composition.

        vocab_size: Logits per column, as the condition expects.

        batch_size: Rows; the number of values of a condition with one value per row.

        tokens: The tokens of the texts, such as those that *stop* looks for and some others. By default the
            first six of the vocabulary.

        seed: Seed of the random logits and texts.

    Raises:
        AssertionError: A rule is broken; the message says what was fed, what came, and the rule.

        TypeError: *stop* is no condition.

        ValueError: An option is out of range, or the condition has values for another number of rows.
    """
    if not isinstance(stop, StopCondition) or isinstance(stop, type):
        raise TypeError(f"'stop' must have finishes and be callable as stop(scores, history): got {stop!r}")
    check_sizes(seed, vocab_size=vocab_size, batch_size=batch_size)
    check_rows(stop, batch_size)
    known = token_ids("tokens", tokens or range(min(vocab_size, 6)))
    if max(known) >= vocab_size:
        raise ValueError(f"'tokens' must be ids below {vocab_size}, the 'vocab_size': got {list(tokens)}")
    finishes = stop.finishes
    require(
        isinstance(finishes, tuple) and all(isinstance(finish, Finish) for finish in finishes),
        f"'finishes' must be a tuple of Finish: came: {finishes!r}",
    )
    random = torch.Generator().manual_seed(seed)
    for _ in range(3):
        texts = _Texts.random(batch_size, vocab_size, torch.tensor(known), random)
        others = _Texts.random(batch_size, vocab_size, torch.tensor(known), random)
        _try_texts(stop, texts, others, random)


@attrs.frozen(eq=False)
class _Texts:
    """Rows of random tokens, and the logits that each was sampled from."""

    ids: Tensor
    prompt: Tensor
    logits: Tensor
    """``[batch, steps, vocab]``."""

    @classmethod
    def random(cls, batch: int, vocab: int, tokens: Tensor, random: torch.Generator) -> "_Texts":
        """Texts of *tokens*."""
        prompt = torch.randint(1, 5, (batch,), generator=random)
        picked = torch.randint(0, len(tokens), (batch, 1, 5 + _STEPS), generator=random)
        logits = 3 * torch.randn(batch, _STEPS, vocab, generator=random)
        return cls(tokens[picked], prompt, logits)

    def beside(self, row: int, other: "_Texts") -> "_Texts":
        """The text of *row*, and the other rows of *other*."""
        keep = torch.arange(len(self.ids)) == row
        wide = keep[:, None, None]
        return _Texts(
            torch.where(wide, self.ids, other.ids),
            torch.where(keep, self.prompt, other.prompt),
            torch.where(wide, self.logits, other.logits),
        )

    def told(self, row: int, end: int) -> str:
        """One row up to its new token *end*, for a message."""
        prompt = int(self.prompt[row])
        ids = self.ids[row, 0, : prompt + end].tolist()
        return f"row {row} of {len(self.ids)}, prompt {ids[:prompt]}, new tokens {ids[prompt:]}"


def _try_texts(stop: StopCondition, texts: _Texts, others: _Texts, random: torch.Generator) -> None:
    plain = _codes(stop, texts, [[1] * len(texts.ids)] * _STEPS)
    ragged = torch.randint(0, 4, (_STEPS, len(texts.ids)), generator=random)
    # A first step gives every row a token.
    ragged[0] = ragged[0].clamp(min=1)
    rule = "a token must get the same code if tokens are shown one or several at a time"
    _compare(rule, texts, plain, _codes(stop, texts, ragged.tolist()))
    rule = "a code must not depend on how often it is asked for: a step may be shown again after an error"
    _compare(rule, texts, plain, _codes(stop, texts, [[1] * len(texts.ids)] * _STEPS, times=2))
    for row in range(len(texts.ids)):
        beside = _codes(stop, texts.beside(row, others), [[1] * len(texts.ids)] * _STEPS)
        _compare("a row's codes must not depend on its neighbours", texts, plain, beside, only=row)
    code = by_token(begin(stop))
    if code is not None:
        told: list[list[int]] = []
        for row, codes in enumerate(plain):
            prompt = int(texts.prompt[row])
            new = range(prompt, prompt + len(codes))
            told.append([code(int(texts.ids[row, 0, at]), at + 1, prompt, row) for at in new])
        _compare("by_token() must give the codes of a call", texts, plain, told)
    limit = most_new_tokens(begin(stop))
    if limit is not None:
        for row, codes in enumerate(plain):
            most, ended = limit(int(texts.prompt[row]), row), codes[-1] > 0
            require(
                len(codes) + (not ended) <= most,
                f"most_new_tokens() must be the most new tokens of a row: fed {texts.told(row, len(codes))}; "
                f"came: {most}, and the codes {codes}",
            )


def _codes(
    stop: StopCondition, texts: _Texts, steps: Sequence[Sequence[int]], times: int = 1
) -> list[list[int]]:
    """Each row's codes up to its stop, with so many new tokens of each row in each of *steps*."""
    condition = begin(stop)
    batch = len(texts.ids)
    codes: list[list[int]] = [[] for _ in range(batch)]
    over = [False] * batch
    for gains in steps:
        gained = [0 if over[row] else min(gain, _STEPS - len(codes[row])) for row, gain in enumerate(gains)]
        width = max(gained)
        if not width:
            continue
        at = torch.tensor([len(row) for row in codes])
        columns = torch.minimum(torch.arange(1, width + 1), torch.tensor(gained)[:, None])
        length = texts.prompt[:, None] + at[:, None] + columns
        behind = torch.arange(texts.ids.shape[-1]) >= length[:, None, -1:]
        history = History(texts.ids.masked_fill(behind, -1), length, texts.prompt, torch.arange(batch))
        index = (at[:, None] + columns - 1).clamp(min=0)
        logits = texts.logits.gather(1, index[..., None].expand(-1, -1, texts.logits.shape[-1]))
        for _ in range(times):
            found = _ask(condition, logits, history)
        for row, gain in enumerate(gained):
            for code in found[row, :gain].tolist():
                if not over[row]:
                    codes[row].append(code)
                    over[row] = code > 0
    return codes


def _ask(condition: StopCondition, logits: Tensor, history: History) -> Tensor:
    """The codes of one call, checked."""
    shown, before = logits.clone(), copy_of(history)
    codes = condition(Scores.of(shown), history)
    shape, most = list(history.length.shape), len(condition.finishes)
    fed = (
        f"fed scores {list(logits.shape)}, lengths {before.length.tolist()}, ids {before.ids[:, 0].tolist()}"
    )
    rule = f"a stop condition must return codes 0 to {most}, int64 {shape}, one for each column: {fed}"
    require(isinstance(codes, Tensor), f"{rule}; came: {codes!r}")
    came = f"{rule}; came: {codes.dtype} {list(codes.shape)} {codes.tolist()}"
    require(list(codes.shape) == shape and codes.dtype == torch.int64, came)
    require(bool(((codes >= 0) & (codes <= most)).all()), came)
    require(
        torch.equal(shown, logits),
        f"a stop condition must not write into the scores: {fed}; came: other logits",
    )
    require_history_unchanged(history, before, "a stop condition", fed)
    return codes.clone()


def _compare(
    rule: str, texts: _Texts, expected: list[list[int]], came: list[list[int]], only: int | None = None
) -> None:
    for row in range(len(expected)) if only is None else [only]:
        # Rows in steps of several tokens may be shown fewer of them.
        both = min(len(expected[row]), len(came[row]))
        if expected[row][:both] != came[row][:both]:
            raise AssertionError(
                f"{rule}: fed {texts.told(row, both)}; came: codes {came[row][:both]}, and before "
                f"{expected[row][:both]}"
            )
