"""What every wrapped decoder must do, whether its system is a stand-in or a library's own code."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.protocols import Sampler
from decodekit.neuron_backend import StaticDecoder
from decodekit.neuron_backend.adapters import WrappedDecoder
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator

from ...histories import history_of_rows
from .systems import BATCH, LENGTH, Reference

RAGGED = [[5, 9, 2, 44, 17, 3, 8], [60], [7, 7, 30, 2, 2, 11, 50, 1, 5, 5, 42, 9, 13, 33, 21, 4, 4, 60, 0]]
LONG = [list(range(3, 33)), [1, 2], list(range(40, 60))]
PROMPTS = {"ragged": RAGGED, "long": LONG, "alone": RAGGED[:1]}
"""Prompts of one token, longer than the context encoding, or fewer than the rows."""

Part = tuple[int, list[int]] | None
"""One row's part of a forward: how far it rewinds, 8 for to the beginning, and the tokens it is then fed."""

_PARTS = st.none() | st.tuples(st.integers(0, 8), st.lists(st.integers(0, 4), min_size=1, max_size=20))
FORWARDS = st.lists(st.tuples(*[_PARTS] * BATCH, st.integers(0, 9)), min_size=1, max_size=8)
"""Forwards for :func:`check_forwards`: a part for each row, and the number of a width."""


def check_text(
    decoder: WrappedDecoder, own: StaticDecoder, prompts: list[list[int]], sampler: Sampler
) -> None:
    """The text is that of *own*, which has the same model."""
    stop = MaxNewTokens(12)

    result = Generator(decoder, sampler=sampler, stop=stop)(prompts)

    assert Generator(own, sampler=sampler, stop=stop)(prompts).ids == result.ids


def check_speculation(
    decoder: WrappedDecoder, own: StaticDecoder, draft: StaticDecoder, sampler: Sampler
) -> None:
    """With a draft that is often wrong, and a *draft* with the same model, the text is plain decoding's."""
    stop = MaxNewTokens(20)
    expected = Generator(own, sampler=sampler, stop=stop)(RAGGED).ids
    k = decoder.shape.scored_width - 1

    copied, looked_up = (
        SpeculativeGenerator(decoder, drafter, num_draft_tokens=k, sampler=sampler, stop=stop)(RAGGED)
        for drafter in (DraftModel(draft), PromptLookup())
    )

    assert expected == copied.ids
    assert expected == looked_up.ids
    # The copy drafts right except for rounding: fewer steps than tokens.
    assert copied.statistics.mean_accepted_length > 2


def check_joining(decoder: WrappedDecoder, reference: Reference) -> None:
    """Rows that start, lag, and restart beside others score as they do alone."""
    slots = Slots.of(decoder)
    texts: list[list[int]] = [list(RAGGED[0]), [], []]
    for turn in range(14):
        if turn == 3:
            texts[1] = [60]
        if turn == 5:
            texts[2] = list(RAGGED[2])
        if turn == 9:
            texts[1] = [60, 4, 4]
        rows = [row for row in range(BATCH) if texts[row] and turn % (row + 2) != 1]
        history = history_of_rows(texts, LENGTH)
        need = torch.tensor([int(row in rows) for row in range(BATCH)])
        logits = slots.feed(history, history.length[:, 0], need).logits
        for row in rows:
            own = logits[row, -1 if logits.shape[1] == 1 else 0]
            torch.testing.assert_close(own, reference.after(tuple(texts[row])), atol=1e-5, rtol=1e-5)
            texts[row].append(int(own.argmax()))


def check_forwards(
    decoder: WrappedDecoder, reference: Reference, forwards: list[tuple[Part, Part, Part, int]]
) -> None:
    """Rows start, continue, rewind and idle independently; every column scores as its prefix does."""
    shape = decoder.shape
    texts: list[list[int]] = [[] for _ in range(BATCH)]
    for *parts, choice in forwards:
        width = shape.widths[choice % len(shape.widths)]
        right = width > shape.scored_width
        ids, start = torch.full((BATCH, width), -1), torch.zeros(BATCH, dtype=torch.int64)
        for row, part in enumerate(parts):
            if part is None:
                continue
            kept = 0 if part[0] == 8 else max(0, len(texts[row]) - part[0])
            new = part[1][: min(width, LENGTH - kept)]
            if not new:
                continue
            texts[row] = texts[row][:kept] + new
            indent = width - len(new) if right else 0
            ids[row, indent : indent + len(new)] = torch.tensor(new)
            start[row] = kept - indent
        logits = decoder.forward(ids, start)
        _compare(reference, texts, ids, start, logits, right)


def _compare(
    reference: Reference, texts: list[list[int]], ids: Tensor, start: Tensor, logits: Tensor, right: bool
) -> None:
    for row, column in (ids >= 0).nonzero().tolist():
        position = int(start[row]) + column
        if right and column < ids.shape[1] - 1:
            continue
        expected = reference.after(tuple(texts[row][: position + 1]))
        got = logits[row, 0 if right else column]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
