"""A tokenizer of a few given pieces."""

from collections.abc import Sequence
from typing import Any


class Pieces:
    """Each id is one of *pieces*; those in angle brackets are special."""

    clean_up_tokenization_spaces = False

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(pieces)
        self.added_tokens_decoder: dict[int, Any] = {}
        self.all_special_ids = [index for index, piece in enumerate(pieces) if piece.startswith("<")]
        self.all_special_tokens = [pieces[index] for index in self.all_special_ids]

    def __len__(self) -> int:
        return len(self.pieces)

    def get_vocab(self) -> dict[str, int]:
        return {piece: index for index, piece in enumerate(self.pieces)}

    def convert_ids_to_tokens(self, ids: int) -> str:
        return self.pieces[ids]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False, **options: Any) -> str:
        skipped = self.all_special_ids if skip_special_tokens else ()
        return "".join(self.pieces[index] for index in token_ids if index not in skipped)

    def __call__(self, text: str) -> dict[str, list[int]]:
        """The longest piece first."""
        ids = []
        while text:
            piece = max((p for p in self.pieces if p and text.startswith(p)), key=len)
            ids.append(self.pieces.index(piece))
            text = text[len(piece) :]
        return {"input_ids": ids}
