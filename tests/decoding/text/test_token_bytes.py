"""Bytes of tokens, and tokens by their bytes."""

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from decodekit.decoding.text.piece_index import PieceIndex
from decodekit.decoding.text.token_bytes import token_bytes

from ...speculation.drafters.tokenizers_for_drafts import KINDS, TEXT, tokenizer
from ...strategies import examples


class TestTokenBytes:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_texts_tokens_spell_it(self, kind: str) -> None:
        """With the space that SentencePiece puts before a text, and without special tokens."""
        known = tokenizer(kind)
        data = token_bytes(known)

        spelled = b"".join(data.get(index, b"") for index in known(TEXT)["input_ids"])
        assert TEXT.encode() == spelled.removeprefix(b" " if kind.startswith("pieces") else b"")

    @pytest.mark.parametrize("kind", KINDS)
    def test_special_tokens_have_none(self, kind: str) -> None:
        """Nor do tokens that add nothing."""
        known = tokenizer(kind)

        assert not set(known.all_special_ids) & set(token_bytes(known))
        assert all(token_bytes(known).values())

    @pytest.mark.parametrize("name", ["né", "Ġx", " lead", "日本", "plain"])
    def test_an_added_token_is_spelled_as_it_is_decoded(self, name: str) -> None:
        """By the byte alphabet, if all of its characters are of it."""
        known = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(tokenizer("bytes").backend_tokenizer.to_str())
        )
        known.add_tokens([name])
        token = known.convert_tokens_to_ids(name)

        assert known.decode([token]) == token_bytes(known)[token].decode(errors="replace")

    def test_another_spelling_is_read_by_decoding(self) -> None:
        """WordPiece: a word comes after a space, and a part of one does not."""
        vocab = {"[UNK]": 0, "the": 1, "##ing": 2, "!": 3}
        backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(cleanup=False)
        known = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")

        assert {1: b" the", 2: b"ing", 3: b" !"} == dict(token_bytes(known))


@settings(deadline=None, max_examples=examples(100))
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=12),
    data=st.binary(max_size=4) | st.text(st.sampled_from("\x00a\x7f\xff"), max_size=3).map(str.encode),
)
def test_pieces_by_bytes_equal_a_search_of_all(pieces: list[bytes], data: bytes) -> None:
    """Equal, extending, and beginning pieces; the largest byte and equal pieces included."""
    known = dict(enumerate([*pieces, b"\xff", b"\xff\xff", b"a\xff"]))
    index = PieceIndex.from_bytes(known)

    assert {i for i, piece in known.items() if piece == data} == set(index.exactly(data))
    longer = {i for i, piece in known.items() if piece.startswith(data) and piece != data}
    assert longer == set(index.extending(data))
    assert bool(longer) == index.can_extend(data)
    begins = {(len(piece), i) for i, piece in known.items() if data.startswith(piece)}
    assert begins == {(end, i) for end, ids in index.beginnings(data) for i in ids}
