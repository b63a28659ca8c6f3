"""Ten thousand random texts in twelve scripts, through every family of tokenizers, in chunks."""

from decodekit.decoding.results.row_text import RowText
from decodekit.decoding.text.detokenizer import Detokenizer

from ...texts_in_scripts import FAMILIES, SCRIPTS, cases

TEXTS = 10_000


def test_pieces_add_up_to_the_decode() -> None:
    """Whatever the script, the tokenizer and the chunks: through a Detokenizer, and through a row's text."""
    met = set()
    for case in cases(TEXTS):
        detokenizer = Detokenizer(case.tokenizer, case.skip_special_tokens)
        row = RowText(Detokenizer(case.tokenizer, case.skip_special_tokens))
        pieces = [detokenizer.push(chunk) for chunk in case.chunks()]
        met.add((case.script, case.family))

        assert pieces == [row.push(chunk) for chunk in case.chunks()], case
        assert case.text == "".join(pieces) + detokenizer.flush(), case

    assert len(SCRIPTS) == 12
    assert len(SCRIPTS) * len(FAMILIES) == len(met)
