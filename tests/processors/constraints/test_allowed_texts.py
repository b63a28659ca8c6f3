"""Generated text that is one of several."""

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.processors import AllowedTexts
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

from ...speculation.drafters.tokenizers_for_drafts import tokenizer
from ...strategies import examples
from ..by_hand import after, stays
from .pieces import Pieces

FEW = Pieces(["a", "b", "ab", "abc", "c", "<end>"])
END = 5


def allowed(texts: list[str], ids: list[int]) -> list[int]:
    """The tokens allowed after the generated *ids*."""
    return stays(AllowedTexts(texts, FEW, END), [0.0] * 6, after(ids))


class TestAllowedTexts:
    def test_allows_every_tokenization_of_each(self) -> None:
        """Of "abc" and "c": what either begins with; no token that goes beyond."""
        assert [0, 2, 3, 4] == allowed(["abc", "c"], [])
        assert [0, 2] == allowed(["ab"], [])

    def test_allows_the_end_after_a_whole_text(self) -> None:
        """And its continuation, where it is a part of a longer one; then the end alone."""
        assert [4, END] == allowed(["ab", "abc"], [2])
        assert [END] == allowed(["ab", "abc"], [2, 4])
        assert [END] == allowed(["ab", "abc"], [2, END])

    def test_leaves_no_token_after_another_text(self) -> None:
        """Nor after an end in the middle of one."""
        assert [] == allowed(["ab"], [1])
        assert [] == allowed(["ab"], [0, END])

    def test_avoids_tokens_after_which_no_text_can_be_completed(self) -> None:
        """There is no "y" alone."""
        pieces = Pieces(["x", "xy", "z", "<end>"])

        assert [1] == stays(AllowedTexts(["xyz"], pieces, 3), [0.0] * 4, after([]))

    def test_an_end_with_text_only_ends(self) -> None:
        """It is allowed after a whole text alone, and no text needs it."""
        pieces = Pieces(["a", "\n", "\nb", "a\n", "b"])

        def allowed_here(texts: list[str], ids: list[int]) -> list[int]:
            return stays(AllowedTexts(texts, pieces, 1), [0.0] * 5, after(ids))

        assert [0, 3] == allowed_here(["a\nb"], [])
        assert [2] == allowed_here(["a\nb"], [0])
        assert [1] == allowed_here(["a\nb"], [0, 2])
        assert [] == allowed_here(["a\nb"], [0, 1])
        assert [4] == allowed_here(["a\nb"], [3])
        assert [3] == allowed_here(["a\n"], [])
        assert [1] == allowed_here(["a\n"], [3])
        assert [1, 2] == allowed_here(["a", "a\nb"], [0])
        assert [1] == allowed_here(["a", "a\nb"], [0, 1])
        with pytest.raises(ValueError, match=r"tokens for, besides 'eos': got b'b\\n'"):
            AllowedTexts(["b\n"], pieces, 1)

    def test_survives_pickling(self) -> None:
        """With its tokenizer."""
        processor = pickle.loads(pickle.dumps(AllowedTexts(["abc"], FEW, END)))

        assert [0, 2, 3] == stays(processor, [0.0] * 6)

    @pytest.mark.parametrize(
        ("texts", "error", "message"),
        [
            ("ab", TypeError, "must be a list of strings or bytes"),
            ([3], TypeError, "must be a list of strings or bytes"),
            ([], ValueError, "one or several texts"),
            (["a", ""], ValueError, "one or several texts"),
            (["ax"], ValueError, "texts that the tokenizer has tokens for, besides 'eos': got b'ax'"),
        ],
    )
    def test_refuses(self, texts: Any, error: type[Exception], message: str) -> None:
        """What is no text, no texts, and a text that cannot be written."""
        with pytest.raises(error, match=message):
            AllowedTexts(texts, FEW, END)

    def test_needs_an_end(self) -> None:
        """The tokenizer's, unless one is given."""
        known = tokenizer("bytes")

        assert (known.eos_token_id,) == AllowedTexts(["yes"], known).eos
        with pytest.raises(ValueError, match="'eos' must name at least one token id"):
            AllowedTexts(["a"], FEW, ())


@settings(deadline=None, max_examples=examples(60))
@given(
    kind=st.sampled_from(("bytes", "bytes-bos", "pieces")),
    texts=st.lists(st.text(st.sampled_from(" abtheқ🇯."), min_size=1, max_size=6), min_size=1, max_size=5),
    seed=st.integers(0, 2**20),
)
def test_every_sampled_text_is_one_of_them(kind: str, texts: list[str], seed: int) -> None:
    """Byte for byte, with an end after it; and with a drafter the same."""
    known = tokenizer(kind)
    table = torch.randn(31, len(known), generator=torch.Generator().manual_seed(seed))
    decoder, processor = ScriptedDecoder(table), AllowedTexts(texts, known)
    parts: dict[str, Any] = {
        "processors": processor,
        "sampler": Sample(seed=seed),
        "stop": MaxNewTokens(40),
        "end_of_sequence": known.eos_token_id,
    }

    ids = Generator(decoder, **parts)([1, 2]).ids[0]

    assert known.eos_token_id == ids[-1]
    assert processor._index.text_of(ids[:-1]) in [text.encode() for text in texts]
    assert [ids] == SpeculativeGenerator(decoder, PromptLookup(), num_draft_tokens=4, **parts)([1, 2]).ids
