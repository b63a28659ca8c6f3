"""Drafting with a model of another tokenizer, by retokenizing its text."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import (
    EndOfSequence,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Sample,
    SamplingPipeline,
)
from decodekit.speculation import RetokenizedDraft, SpeculativeGenerator
from decodekit.speculation.drafters.vocabulary import Vocabulary
from decodekit.testing import ScriptedDecoder

from .tokenizers_for_drafts import KINDS, TEXT, tokenizer, writer

SHAPE: dict[str, Any] = {"max_length": 128, "widths": (1, 5, 32), "scored_width": 5}
LONG: dict[str, Any] = {"max_length": 1000, "widths": (1, 5, 128), "scored_width": 5}


def random_decoder(kind: str, seed: int, rows: int = 2, **changes: Any) -> ScriptedDecoder:
    """A random decoder over a tokenizer's ids, plus five ids without a token."""
    generator = torch.Generator().manual_seed(seed)
    table = 3 * torch.randn(61, len(tokenizer(kind)) + 5, generator=generator)
    return ScriptedDecoder(table, rows, **{**SHAPE, **changes})


def history(ids: list[int]) -> History:
    """One row of *ids*, with room for more."""
    return History(
        torch.tensor([[ids + [7] * 40]]), torch.tensor([[len(ids)]]), torch.tensor([1]), torch.tensor([0])
    )


def draft_ids(draft: RetokenizedDraft, ids: list[int], budget: int) -> list[int]:
    """Draft of *draft* after *ids*."""
    found = draft.propose(history(ids), torch.tensor([budget]), SamplingPipeline(None, Greedy()))
    return [index for index in found.ids[0].tolist() if index >= 0]


@pytest.mark.mostly_slow(every=6)
@pytest.mark.parametrize("draft_kind", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_that_writes_the_same_is_right(kind: str, draft_kind: str) -> None:
    """
    In several scripts, line breaks and pictures: text the draft model knows is drafted for the target.

    Except a draft's last token, which may be incomplete, and characters that the target spells in
    several byte tokens, which the draft model has to generate whole.
    """
    ids = tokenizer(kind).encode(TEXT)
    target, own = writer(kind, TEXT, **LONG), writer(draft_kind, TEXT, **LONG)
    draft = RetokenizedDraft(own, tokenizer(draft_kind), tokenizer(kind))
    stop = EndOfSequence(tokenizer(kind).eos_token_id) | MaxNewTokens(900)
    result = SpeculativeGenerator(target, draft, num_draft_tokens=4, stop=stop)(ids[:5])
    statistics = result.statistics

    assert [*ids[5:], tokenizer(kind).eos_token_id] == result.ids[0]
    assert statistics.mean_accepted_length > 3.4
    # Conditional acceptance is three in four, and nearly one for a draft's first token.
    assert sum(statistics.accepted) > 0.75 * sum(statistics.reached)
    assert statistics.accepted[0] > 0.9 * statistics.drafted[0]


def test_the_same_tokenizer_needs_one_forward_per_token() -> None:
    """Then a token of the draft is a token of the target."""
    target, own = writer("pieces", TEXT, **LONG), writer("pieces", TEXT, **LONG)
    draft = RetokenizedDraft(own, tokenizer("pieces"), tokenizer("pieces"))
    fast = SpeculativeGenerator(target, draft, num_draft_tokens=4, stop=MaxNewTokens(101))
    result = fast(tokenizer("pieces").encode(TEXT)[:4])

    assert 5.0 == result.statistics.mean_accepted_length
    assert 80 == len(own.forwards)


@pytest.mark.mostly_slow(every=6)
@pytest.mark.parametrize("draft_kind", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_changes_no_text(kind: str, draft_kind: str) -> None:
    """For all pairs of tokenizers: random models, prompts with special tokens, greedy or sampled."""
    dice = random.Random(f"{kind} {draft_kind}")
    target, own = random_decoder(kind, 1), random_decoder(draft_kind, 2, max_length=96)
    draft = RetokenizedDraft(own, tokenizer(draft_kind), tokenizer(kind))
    for seed in range(3):
        vocab = target.shape.vocab_size
        prompts = [[dice.randrange(vocab) for _ in range(dice.randint(1, 60))] for _ in range(2)]
        parts = {
            "sampler": Sample(seed) if seed % 3 else Greedy(),
            "stop": EndOfSequence(tokenizer(kind).eos_token_id) | MaxNewTokens(20),
        }
        plain = Generator(target, **parts)(prompts)

        assert plain.ids == SpeculativeGenerator(target, draft, **parts)(prompts).ids


@given(text=st.text(alphabet="the fox é世👋.\n", min_size=1, max_size=60), data=st.data())
def test_is_a_function_of_the_tokens(text: str, data: st.DataObject) -> None:
    """The draft model's input does not depend on earlier rows or texts."""
    kind, other = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(KINDS))
    used, fresh = (
        RetokenizedDraft(random_decoder(other, 2), tokenizer(other), tokenizer(kind)) for _ in range(2)
    )
    ids = tokenizer(kind).encode(text)
    for cut in data.draw(st.lists(st.integers(1, len(ids)), max_size=5)):
        used._translated(0, np.array(ids[:cut]))

    assert used._translated(0, np.array(ids))[0].tolist() == fresh._translated(0, np.array(ids))[0].tolist()


class TestWhatTheDraftIsFed:
    """The target's text in the draft's tokens."""

    @pytest.mark.parametrize("draft_kind", KINDS)
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_what_its_tokenizer_makes_of_the_text(self, kind: str, draft_kind: str) -> None:
        """Chunk by chunk it has the same text as at once, and mostly the same tokens."""
        draft = RetokenizedDraft(random_decoder(draft_kind, 2), tokenizer(draft_kind), tokenizer(kind))
        own = draft._translated(0, np.array(tokenizer(kind).encode(3 * TEXT)))[0].tolist()
        at_once = tokenizer(draft_kind).encode(3 * TEXT)

        assert tokenizer(draft_kind).decode(at_once) == tokenizer(draft_kind).decode(own)
        assert abs(len(own) - len(at_once)) <= 0.03 * len(at_once)

    def test_stays_as_it_is_when_the_text_grows(self) -> None:
        """All but the newest chunk, so the draft is fed little again."""
        draft = RetokenizedDraft(random_decoder("bytes-few", 2), tokenizer("bytes-few"), tokenizer("bytes"))
        ids = np.array(tokenizer("bytes").encode(TEXT))
        before = draft._translated(0, ids[:1])[0]
        for end in range(2, len(ids)):
            after = draft._translated(0, ids[:end])[0]
            same = (before[: len(after)] == after[: len(before)]).cumprod().sum()

            assert len(after) - same < 3 * 64
            before = after

    def test_is_tokenized_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However often a text is gone on with: only its newest chunk is tokenized again."""
        draft = RetokenizedDraft(random_decoder("bytes-few", 2), tokenizer("bytes-few"), tokenizer("bytes"))
        ids = np.array(tokenizer("bytes").encode(5 * TEXT))
        draft._translated(0, ids[:-20])
        encoded: list[str] = []
        encode = Vocabulary.encode
        monkeypatch.setattr(
            Vocabulary,
            "encode",
            lambda self, text, start: encoded.append(text) or encode(self, text, start),
        )
        for end in range(len(ids) - 19, len(ids)):
            draft._translated(0, ids[:end])

        assert len(encoded) < 2 * 20

    def test_has_the_drafts_special_tokens(self) -> None:
        """By name or role; those the draft lacks are dropped, its leading special tokens prepended."""
        kind, other = tokenizer("bytes"), tokenizer("bytes-bos")
        draft = RetokenizedDraft(random_decoder("bytes-bos", 2), other, kind)
        ids = [*kind.encode("The fox"), kind.eos_token_id, *kind.encode("jumps")]

        assert "<s>The fox</s>jumps" == other.decode(draft._translated(0, np.array(ids))[0])

        back = RetokenizedDraft(random_decoder("bytes", 2), kind, other)
        ids = other.encode("The fox")

        assert "The fox" == kind.decode(back._translated(0, np.array(ids))[0])


class TestDraftTokens:
    """The draft model's text in the target's tokens."""

    def test_goes_on_in_the_middle_of_a_word(self) -> None:
        """A word that the target has begun is finished, not begun again."""
        kind = tokenizer("bytes")
        ids = kind.encode("The quick brown f")
        draft = RetokenizedDraft(writer("pieces", TEXT, **LONG), tokenizer("pieces"), kind)

        assert "The quick brown fox" in kind.decode(ids + draft_ids(draft, ids, 6))

    def test_goes_on_from_tokens_that_no_tokenizer_makes(self) -> None:
        """A model may write a word letter by letter."""
        kind = tokenizer("bytes")
        ids = [index for letter in "The quick brown" for index in kind.encode(letter)]
        draft = RetokenizedDraft(writer("pieces", TEXT, **LONG), tokenizer("pieces"), kind)

        assert "The quick brown fox, it" in kind.decode(ids + draft_ids(draft, ids, 6))

    def test_goes_on_in_the_middle_of_a_character(self) -> None:
        """The draft model generates a whole character; the rest of it is drafted."""
        kind = tokenizer("bytes-few")
        ids = kind.encode(TEXT[:62])
        cut = next(n for n in range(len(ids) - 1, 0, -1) if kind.decode(ids[:n]).endswith("\ufffd"))
        draft = RetokenizedDraft(writer("pieces", TEXT, **LONG), tokenizer("pieces"), kind)

        assert ids[cut] == draft_ids(draft, ids[:cut], 4)[0]

    def test_ends_with_the_draft(self) -> None:
        """The draft's end of sequence becomes the target's, and nothing is drafted after it."""
        kind = tokenizer("bytes")
        ids = kind.encode(TEXT)
        draft = RetokenizedDraft(writer("bytes-few", TEXT, **LONG), tokenizer("bytes-few"), kind)

        assert [*ids[-1:], kind.eos_token_id] == draft_ids(draft, ids[:-1], 5)

    def test_is_nothing_where_nothing_is_written(self) -> None:
        """Ids without a token give no draft."""
        kind, table = tokenizer("bytes"), torch.zeros(1, 300)
        table[0, 299] = 1.0
        draft = RetokenizedDraft(ScriptedDecoder(table), tokenizer("bytes-few"), kind)

        assert [] == draft_ids(draft, kind.encode("The"), 5)

    def test_is_as_far_as_the_drafts_positions_go(self) -> None:
        """A row beyond them gets no draft, and one near them a short one."""
        kind, ids = tokenizer("pieces"), tokenizer("pieces").encode(TEXT)
        own = writer("pieces", TEXT, max_length=20, widths=(1, 5, 16))
        draft = RetokenizedDraft(own, kind, kind)

        assert [ids[10:14], ids[19:21], ids[20:21], []] == [
            draft_ids(draft, ids[:n], 4) for n in (10, 19, 20, 21)
        ]

    def test_is_nothing_in_a_character_that_no_tokenizer_would_split(self) -> None:
        """The remaining bytes cannot be derived from the draft's text."""
        kind = tokenizer("bytes")
        letters = [index for letter in "The quick" for index in kind.encode(letter)]
        half = kind.convert_tokens_to_ids(["Ġ", "Ð"])
        draft = RetokenizedDraft(writer("pieces", "The quick Жук.", **LONG), tokenizer("pieces"), kind)

        assert [] == draft_ids(draft, letters + half, 4)

    def test_breaks_off_when_the_draft_needs_too_many_tokens(self) -> None:
        """A draft that never comes to the end of a character draws twice the budget."""
        table = torch.zeros(1, len(tokenizer("bytes-few")))
        table[0, tokenizer("bytes-few").convert_tokens_to_ids("ð")] = 1.0
        own = ScriptedDecoder(table)
        draft = RetokenizedDraft(own, tokenizer("bytes-few"), tokenizer("bytes"))

        assert [] == draft_ids(draft, tokenizer("bytes").encode("The fox"), 3)
        assert 6 == len(own.forwards)


def test_needs_as_many_rows() -> None:
    """A draft of fewer rows is refused when the generator is built."""
    draft = RetokenizedDraft(random_decoder("bytes", 1, rows=1), tokenizer("bytes"), tokenizer("bytes"))

    with pytest.raises(ValueError, match="at least the target's 2 rows: got 1"):
        SpeculativeGenerator(random_decoder("bytes", 1), draft)


def test_needs_a_decoder() -> None:
    """A path or a model is not a decoder."""
    with pytest.raises(TypeError, match="'decoder' must have a shape and forward"):
        RetokenizedDraft("some/model", tokenizer("bytes"), tokenizer("bytes"))  # type: ignore[arg-type]
