"""Forced beginning of the generated text."""

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.decoding.history import History
from decodekit.decoding.text.piece_index import PieceIndex
from decodekit.processors import ForcedPrefix, Temperature
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

from ...speculation.drafters.tokenizers_for_drafts import tokenizer
from ...strategies import examples
from ..by_hand import after, stays
from .pieces import Pieces

FEW = Pieces(["a", "b", "ab", "abc", "c", "<end>", "ca"])
EQUAL = [0.0] * 7


def constrained(text: str, ids: list[int], pieces: Pieces = FEW) -> list[int]:
    """The tokens allowed after the generated *ids*."""
    return stays(ForcedPrefix(text, pieces), [0.0] * len(pieces), after(ids))


class TestForcedPrefix:
    def test_allows_what_the_rest_begins_with_and_what_extends_it(self) -> None:
        """Of "ab" first "a", "ab" and "abc"; after "a", "b"; never a special token."""
        assert [0, 2, 3] == constrained("ab", [])
        assert [1] == constrained("ab", [0])

    def test_is_the_identity_once_the_prefix_is_complete(self) -> None:
        """The logits themselves, also where a token went beyond it."""
        for ids in ([2], [0, 1], [3], [3, 5]):
            logits = torch.zeros(1, 1, 7)

            assert ForcedPrefix("ab", FEW)(logits, after(ids)) is logits

    def test_avoids_tokens_after_which_the_rest_has_no_tokens(self) -> None:
        """After "x" of "xyz" there would be no "y" alone; after "xy" there is "z"."""
        pieces = Pieces(["x", "xy", "z", "q"])

        assert [1] == constrained("xyz", [], pieces)

    def test_leaves_no_token_after_another_text(self) -> None:
        """A hard constraint: only another processor can have forced that text."""
        assert [] == constrained("ab", [1])

    def test_special_tokens_add_nothing(self) -> None:
        """They are forbidden before the end, and passed over where there is one."""
        assert [1] == constrained("ab", [5, 0])

    def test_reads_the_new_tokens_alone(self) -> None:
        """The prompt's text does not count."""
        assert [0, 2, 3] == stays(ForcedPrefix("ab", FEW), EQUAL, after([2, 2], prompt=2))

    def test_prefixes_per_row(self) -> None:
        """Each row its own, None for none; another number of rows is refused."""
        history = History(
            torch.zeros(3, 1, 4).long(), torch.zeros(3, 1).long(), torch.zeros(3).long(), torch.zeros(3)
        )
        processor = ForcedPrefix(["ab", None, b"c"], FEW)
        processed = processor(torch.zeros(3, 1, 7), history)

        kept = [(row[0] > -torch.inf).nonzero()[:, 0].tolist() for row in processed]
        assert [[0, 2, 3], list(range(7)), [4, 6]] == kept
        assert not processor.row_independent
        with pytest.raises(ValueError, match="one value per row: got 3 for 1 rows"):
            processor(torch.zeros(1, 1, 7), after([]))

    def test_a_vocabulary_that_ends_before_the_tokenizers(self) -> None:
        """Ids beyond the logits are left out."""
        assert [4] == stays(ForcedPrefix("c", FEW), [0.0] * 5)

    def test_a_prefix_without_tokens_is_refused(self) -> None:
        """When it is given, with the text."""
        with pytest.raises(ValueError, match="text that the tokenizer has tokens for: got b'abx'"):
            ForcedPrefix("abx", FEW)

    @pytest.mark.parametrize(("prefix", "error"), [(3, TypeError), (["a", 3], TypeError), ([], ValueError)])
    def test_other_values_are_refused(self, prefix: Any, error: type[Exception]) -> None:
        """What is no text, and no texts."""
        with pytest.raises(error, match="'prefix' must be"):
            ForcedPrefix(prefix, FEW)

    def test_survives_pickling(self) -> None:
        """With its tokenizer."""
        processor = pickle.loads(pickle.dumps(ForcedPrefix("ab", FEW)))

        assert [0, 2, 3] == stays(processor, EQUAL)


@settings(deadline=None, max_examples=examples(60))
@given(
    kind=st.sampled_from(("bytes", "bytes-bos", "pieces")),
    prefix=st.text(st.sampled_from(" abtheқ🇯х.\n"), min_size=1, max_size=9),
    seed=st.integers(0, 2**20),
)
def test_every_sampled_text_begins_with_the_prefix(kind: str, prefix: str, seed: int) -> None:
    """For byte-level and SentencePiece vocabularies, at any tokenization that sampling finds."""
    known = tokenizer(kind)
    size = len(known)
    table = torch.randn(31, size, generator=torch.Generator().manual_seed(seed))
    decoder = ScriptedDecoder(table)
    generator = Generator(
        decoder,
        processors=ForcedPrefix(prefix, known),
        sampler=Sample(seed=seed),
        stop=MaxNewTokens(len(prefix.encode()) + 1),
    )

    ids = generator([1, 2]).ids[0]

    assert PieceIndex.of(known).text_of(ids).startswith(prefix.encode())


def test_speculation_changes_nothing() -> None:
    """Columns of a verification follow their own draft tokens."""
    known = tokenizer("bytes")
    table = torch.randn(31, len(known), generator=torch.Generator().manual_seed(0))
    decoder = ScriptedDecoder(table, batch_size=2)
    parts: dict[str, Any] = {
        "processors": ForcedPrefix(["The quick brown", b"\xf0\x9f"], known) | Temperature(0.8),
        "sampler": Sample(seed=3),
        "stop": MaxNewTokens(24),
    }
    prompts = [known("The quick brown fox. The quick brown")["input_ids"], [5, 6]]

    plain = Generator(decoder, **parts)(prompts)
    fast = SpeculativeGenerator(decoder, PromptLookup(), num_draft_tokens=4, **parts)(prompts)

    assert plain.ids == fast.ids
