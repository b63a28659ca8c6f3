"""Catalogue entries of constraints."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from decodekit.processors import (
    AllowedSequences,
    AllowedTexts,
    AllowedTokens,
    BadWords,
    ForcedFirstToken,
    ForcedLastToken,
    ForcedPrefix,
    Grammar,
    LogitBias,
    MinLength,
    MinNewTokens,
    PrefixFunction,
    RemoveInvalid,
    SequenceBias,
    SuppressFirst,
    SuppressTokens,
    ThinkingBudget,
)

from ..constraints.pieces import Pieces
from ..grammar.languages import END, PIECES, Brackets
from .entry import NONE, Entry, off_or


def brackets_that_may_follow(language: Brackets, prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """From the list of all texts."""
    texts = language.texts()

    def mask(ids: Tensor, logits: Tensor) -> Tensor:
        generated = ids[0, prompt:].tolist()
        ended = END in generated
        ids_of_text = generated[: generated.index(END)] if ended else generated
        text = "".join(dict(enumerate(PIECES)).get(token, "?") for token in ids_of_text)
        allowed = {END} if text in texts else set()
        if not ended:
            allowed |= {i for i, piece in enumerate(PIECES) if any(t.startswith(text + piece) for t in texts)}
        forbidden = torch.tensor([token not in allowed for token in range(logits.shape[-1])])
        return logits.masked_fill(forbidden, -torch.inf)

    return mask


Reference = Callable[[Tensor, Tensor], Tensor]


def at_its_own_logit(forcing: Reference) -> Reference:
    """Hugging Face gives 0 to a token that it forces."""
    return lambda ids, logits: logits.masked_fill(forcing(ids, logits) == -torch.inf, -torch.inf)


def successors(row: int, ids: Tensor) -> list[int]:
    """A prefix function: the last token's successor and their sum, in a vocabulary of four."""
    return [(int(ids[-1]) + 1) % 4, int(ids.sum()) % 4] if len(ids) else [2]


def last_token(row: int, ids: Tensor) -> list[int]:
    """A prefix function: the last token again."""
    return ids[-1:].tolist()


def prefix_constrained(function: Callable[[int, Tensor], list[int]], prompt: int) -> Reference:
    """Hugging Face's own, which raises where nothing is allowed and lets in what was forbidden."""

    def mask(ids: Tensor, logits: Tensor) -> Tensor:
        if not function(0, ids[0]):
            return torch.full_like(logits, -torch.inf)
        return at_its_own_logit(hf.PrefixConstrainedLogitsProcessor(function, 1))(ids, logits)

    return mask


SHORT = Pieces(["a", "b", "ab", "aba"])


def spelling(prefix: str, prompt: int) -> Reference:
    """By trying all texts that the tokens can spell."""

    def fits(text: str) -> bool:
        """Whether *text* is one of the prefix, and can go on to it, or goes beyond it."""
        if len(text) >= len(prefix):
            return text.startswith(prefix)
        return prefix.startswith(text) and any(fits(text + piece) for piece in SHORT.pieces)

    def mask(ids: Tensor, logits: Tensor) -> Tensor:
        new = SHORT.decode([index for index in ids[0, prompt:].tolist() if 0 <= index < 4])
        if len(new) >= len(prefix) and new.startswith(prefix):
            return logits
        allowed = {index for index, piece in enumerate(SHORT.pieces) if fits(new + piece)}
        forbidden = torch.tensor([token not in allowed for token in range(logits.shape[-1])])
        return logits.masked_fill(forbidden, -torch.inf)

    return mask


def one_of(sequences: list[list[int]], prompt: int, known: int | None = None) -> Reference:
    """One of some sequences of tokens, and then 3; ids from *known* on add nothing."""

    def mask(ids: Tensor, logits: Tensor) -> Tensor:
        new = [index for index in ids[0, prompt:].tolist() if known is None or index < known]
        before = new[: new.index(3)] if 3 in new else new
        allowed = {3} if before in sequences else set()
        if 3 not in new:
            size = len(new)
            allowed |= {one[size] for one in sequences if one[:size] == new and len(one) > size}
        forbidden = torch.tensor([token not in allowed for token in range(logits.shape[-1])])
        return logits.masked_fill(forbidden, -torch.inf)

    return mask


ENDED = Pieces(["a", "b", "ab", "<end>"])


def one_of_the_texts(texts: list[str], prompt: int) -> Reference:
    """Through all tokenizations of all texts."""

    def spellings(text: str) -> list[list[int]]:
        if not text:
            return [[]]
        starts = [index for index in range(3) if text.startswith(ENDED.pieces[index])]
        return [[index, *rest] for index in starts for rest in spellings(text[len(ENDED.pieces[index]) :])]

    return one_of([spelling for text in texts for spelling in spellings(text)], prompt, known=4)


def thinking(budget: int | None, start: list[int], end: list[int]) -> Reference:
    """The budget by a machine that reads token by token."""

    def force(ids: Tensor, logits: Tensor) -> Tensor:
        section: list[int] | None = None
        said = ids[0].tolist()
        for i in range(1, len(said) + 1):
            if section is not None:
                section.append(said[i - 1])
            if i >= len(end) and said[i - len(end) : i] == end:
                section = None
            elif section is None and i >= len(start) and said[i - len(start) : i] == start:
                section = []
        if section is None or budget in (None, -1) or len(section) < budget:
            return logits
        done = max(n for n in range(len(end)) if n <= len(section) and section[len(section) - n :] == end[:n])
        forced = torch.full_like(logits, -torch.inf)
        forced[0, end[done]] = logits[0, end[done]]
        return forced

    return force


ENTRIES = {
    "SequenceBias": Entry(
        SequenceBias,
        st.dictionaries(
            st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple),
            st.sampled_from((-7.5, -0.25, 0.0, 1.5, 20.0, -float("inf"))),
            max_size=6,
        ),
        {},
        {(1,): 0.5, (0, 1): -1.0, (1, 2, 3): 2.0},
        off_or({}, hf.SequenceBiasLogitsProcessor),
        rows=False,
        hard=True,
        atol=1e-5,
    ),
    "BadWords": Entry(
        lambda words: BadWords(words, eos=[3]),
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=6),
        [],
        [[1], [0, 2]],
        lambda words, prompt: (
            (lambda ids, logits: logits)
            if not [word for word in words if word != [3]]
            else hf.NoBadWordsLogitsProcessor(words, [3])
        ),
        rows=False,
        hard=True,
    ),
    "SuppressFirst": Entry(
        SuppressFirst,
        st.lists(st.integers(0, 3), max_size=5),
        [],
        [1],
        lambda value, prompt: hf.SuppressTokensAtBeginLogitsProcessor(value, prompt),
        rows=False,
        hard=True,
    ),
    "SuppressFirst so many": Entry(
        lambda n: SuppressFirst([3, 1], n),
        st.integers(0, 8),
        0,
        2,
        lambda n, prompt: hf.MinNewTokensLengthLogitsProcessor(prompt, n, [3, 1]),
        hard=True,
    ),
    "AllowedSequences": Entry(
        lambda sequences: AllowedSequences(sequences, 3),
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=5),
        NONE,
        [[1, 2], [0]],
        one_of,
        rows=False,
        hard=True,
        host_only=True,
    ),
    "AllowedTexts": Entry(
        lambda texts: AllowedTexts(texts, ENDED, 3),
        st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=4), min_size=1, max_size=4),
        NONE,
        ["ab", "b"],
        one_of_the_texts,
        rows=False,
        hard=True,
        host_only=True,
    ),
    "AllowedTokens": Entry(
        AllowedTokens,
        st.lists(st.integers(0, 3), min_size=1, max_size=5),
        NONE,
        [1, 2],
        lambda value, prompt: at_its_own_logit(
            hf.PrefixConstrainedLogitsProcessor(lambda row, ids: value, 1)
        ),
        rows=False,
        hard=True,
    ),
    "ForcedFirstToken": Entry(
        ForcedFirstToken,
        st.integers(0, 3),
        NONE,
        1,
        # Forced first is forced at a length, and that is the prompt's.
        lambda value, prompt: at_its_own_logit(hf.ForcedEOSTokenLogitsProcessor(prompt + 1, value)),
        rows=False,
        hard=True,
    ),
    "ForcedLastToken": Entry(
        lambda limit: ForcedLastToken([3, 1], max_length=limit),
        st.integers(1, 14),
        NONE,
        5,
        lambda limit, prompt: at_its_own_logit(hf.ForcedEOSTokenLogitsProcessor(limit, [3, 1])),
        rows=False,
        hard=True,
    ),
    "ForcedLastToken of the generated": Entry(
        lambda limit: ForcedLastToken(2, max_new_tokens=limit),
        st.integers(1, 14),
        NONE,
        5,
        lambda limit, prompt: at_its_own_logit(hf.ForcedEOSTokenLogitsProcessor(prompt + limit, 2)),
        rows=False,
        hard=True,
    ),
    "ForcedLastToken at 0": Entry(
        lambda limit: ForcedLastToken([3, 1], max_length=limit, logit=0.0),
        st.integers(1, 14),
        NONE,
        5,
        lambda limit, prompt: hf.ForcedEOSTokenLogitsProcessor(limit, [3, 1]),
        forces=True,
        rows=False,
        hard=True,
    ),
    "ForcedPrefix": Entry(
        lambda prefix: ForcedPrefix(prefix, SHORT),
        st.text(st.sampled_from("ab"), max_size=6),
        "",
        "abba",
        spelling,
        rows=False,
        hard=True,
        host_only=True,
    ),
    "MinLength": Entry(
        lambda value: MinLength(value, [3, 1]),
        st.integers(0, 14),
        0,
        9,
        lambda value, prompt: hf.MinLengthLogitsProcessor(value, [3, 1]),
        hard=True,
    ),
    "PrefixFunction": Entry(
        PrefixFunction,
        st.sampled_from((successors, last_token)),
        NONE,
        successors,
        prefix_constrained,
        rows=False,
        hard=True,
        host_only=True,
    ),
    "ThinkingBudget": Entry(
        lambda budget: ThinkingBudget(budget, 0, 1),
        st.integers(-1, 6),
        -1,
        1,
        lambda budget, prompt: thinking(budget, [0], [1]),
        hard=True,
    ),
    "ThinkingBudget between sequences": Entry(
        lambda budget: ThinkingBudget(budget, [0], [1, 1, 2]),
        st.integers(-1, 6),
        -1,
        1,
        lambda budget, prompt: thinking(budget, [0], [1, 1, 2]),
        hard=True,
    ),
    "ThinkingBudget between sequences that overlap": Entry(
        lambda budget: ThinkingBudget(budget, [0, 1], [1, 0]),
        st.integers(-1, 6),
        -1,
        1,
        lambda budget, prompt: thinking(budget, [0, 1], [1, 0]),
        hard=True,
    ),
    "RemoveInvalid": Entry(
        RemoveInvalid,
        st.sampled_from((-float("inf"), 0.0)),
        NONE,
        0.0,
        lambda value, prompt: lambda ids, logits: logits,
        rows=False,
        hard=True,
    ),
    "Grammar": Entry(
        Grammar,
        st.builds(Brackets, st.integers(1, 3)),
        None,
        Brackets(2),
        brackets_that_may_follow,
        rows=False,
        hard=True,
        host_only=True,
    ),
    "MinNewTokens": Entry(
        lambda value: MinNewTokens(value, [3, 1]),
        st.integers(0, 8),
        0,
        2,
        lambda value, prompt: hf.MinNewTokensLengthLogitsProcessor(prompt, value, [3, 1]),
        hard=True,
    ),
    "LogitBias": Entry(
        LogitBias,
        st.dictionaries(st.integers(0, 3), st.sampled_from((-7.5, -0.25, 0.0, 1.5, 20.0)), max_size=4),
        {},
        {1: 0.5},
        off_or(
            {},
            lambda value: hf.SequenceBiasLogitsProcessor({(token,): bias for token, bias in value.items()}),
        ),
        rows=False,
    ),
    "SuppressTokens": Entry(
        SuppressTokens,
        st.lists(st.integers(0, 3), max_size=5),
        [],
        [1],
        lambda value, prompt: hf.SuppressTokensLogitsProcessor(value),
        rows=False,
        hard=True,
    ),
}
