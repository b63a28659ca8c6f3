"""Bytes of each token id."""

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from decodekit.speculation.drafters.vocabulary import Vocabulary, characters, counterparts, ends_in_character

from .tokenizers_for_drafts import KINDS, TEXT, permuted, tokenizer, wrapped


def vocabulary(kind: str) -> Vocabulary:
    """Vocabulary of a test tokenizer."""
    return Vocabulary(tokenizer(kind), len(tokenizer(kind)))


class TestVocabulary:
    """Decoding and encoding."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_round_trip(self, kind: str) -> None:
        """The ids of a text give its bytes in every script, without the prepended space."""
        assert TEXT.encode() == vocabulary(kind).bytes_of(tokenizer(kind).encode(TEXT), starts_text=True)

    @pytest.mark.parametrize("kind", KINDS)
    @given(text=st.text(alphabet=" .\naefoxЖ世👋", max_size=12))
    def test_a_text_in_the_middle_round_trips(self, kind: str, text: str) -> None:
        """No space is prepended inside a text, unless every prefix merges with it."""
        voc = vocabulary(kind)
        data = voc.bytes_of(voc.encode(text, starts_text=False)).decode()

        assert text == data if text[:1].isalpha() else data.endswith(text)

    @pytest.mark.parametrize(
        ("kind", "leading_specials"), [("bytes", []), ("bytes-bos", ["<s>"]), ("pieces", ["<s>"])]
    )
    def test_knows_what_goes_before_every_text(self, kind: str, leading_specials: list[str]) -> None:
        """The special tokens that the tokenizer prepends."""
        assert leading_specials == tokenizer(kind).convert_ids_to_tokens(vocabulary(kind).leading_specials)

    def test_puts_nothing_before_a_text_that_the_model_lacks(self) -> None:
        """A beginning-of-sequence id beyond the model's vocabulary is dropped."""
        kind = "bytes-bos"
        assert [] == Vocabulary(tokenizer(kind), tokenizer(kind).bos_token_id).leading_specials

    def test_special_tokens_say_nothing(self) -> None:
        """Special tokens have no bytes, whatever their names."""
        voc = vocabulary("pieces")

        assert {"<unk>", "<s>", "</s>"} == set(voc.specials.values())
        assert b"" == voc.bytes_of(voc.specials)

    def test_ids_beyond_the_model_are_ignored(self) -> None:
        """Ids beyond the model's vocabulary are neither decoded nor encoded."""
        voc = Vocabulary(tokenizer("bytes"), 300)

        assert max(voc.token_bytes) < 300
        assert max(voc.encode(TEXT, starts_text=True)) < 300

    def test_other_spellings_are_refused(self) -> None:
        """WordPiece loses the position of spaces."""
        backend = Tokenizer(models.WordPiece({"<unk>": 0, "a": 1, "##b": 2}, unk_token="<unk>"))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()

        with pytest.raises(ValueError, match="must spell its tokens as bytes, like GPT-2, or with ▁"):
            Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"), 3)


class TestCounterparts:
    """Equivalent ids of two vocabularies."""

    def test_of_a_permuted_vocabulary_is_the_permutation(self) -> None:
        """Every token has a counterpart, end of sequence included."""
        mixed, new = permuted("bytes")
        pairs = counterparts(vocabulary("bytes"), Vocabulary(mixed, len(mixed)))

        assert dict(enumerate(new.tolist())) == pairs

    def test_of_different_spellings(self) -> None:
        """Ġthe matches ▁the, and <0xF0> the byte, despite different spellings."""
        one, other = vocabulary("bytes"), vocabulary("pieces")
        pairs = counterparts(one, other)
        names = {
            one.tokenizer.convert_ids_to_tokens(a): other.tokenizer.convert_ids_to_tokens(b)
            for a, b in pairs.items()
        }

        assert "▁" == names["Ġ"]
        assert "<0xF0>" == names["ð"]
        # A letter's own token wins over its byte token.
        assert "a" == names["a"]
        assert all(
            one.token_bytes[a] == other.token_bytes[b] for a, b in pairs.items() if a in one.token_bytes
        )

    def test_of_the_ends_of_sequence(self) -> None:
        """They match under any name; a beginning of sequence that one lacks has no counterpart."""
        one, other = vocabulary("bytes-bos"), vocabulary("bytes")
        pairs = counterparts(one, other)

        assert other.eos == pairs[one.eos]
        assert one.tokenizer.bos_token_id not in pairs

    def test_each_at_most_once(self) -> None:
        """The end of sequence takes precedence over a token of the same name."""
        backend = tokenizer("bytes").backend_tokenizer.to_str()
        both = Tokenizer.from_str(backend)
        both.add_special_tokens(["<|stop|>"])
        target = Vocabulary(wrapped(both, eos="<|stop|>"), 422)
        pairs = counterparts(target, vocabulary("bytes"))

        assert vocabulary("bytes").eos == pairs[target.eos]
        assert len(pairs) == len(set(pairs.values()))

    @pytest.mark.parametrize("kind", KINDS)
    def test_with_itself_is_the_identity(self, kind: str) -> None:
        """Except bytes whose letter is a token too."""
        voc = vocabulary(kind)
        pairs = counterparts(voc, voc)

        assert all(a == b for a, b in pairs.items())
        assert len({*voc.token_bytes.values()}) == len([a for a in pairs if a in voc.token_bytes])


@given(st.text(max_size=4), st.integers(0, 12))
def test_half_a_character_is_left_out(text: str, cut: int) -> None:
    """Truncated bytes keep their whole characters, and the truncation is detected."""
    data = text.encode()[:cut]
    whole = max(n for n in range(len(text) + 1) if len(text[:n].encode()) <= len(data))

    assert text[:whole] == characters(data)
    assert ends_in_character(data) == (text[:whole].encode() != data)
