"""Stop strings."""

import itertools
import os.path
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from decodekit.decoding import Finish, Generator, History, MaxNewTokens, StopStrings
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

from ...strategies import examples
from ...texts_in_scripts import FAMILIES, cases, whole_characters

PIECES = ["a", "b", "ab", "ba", "aa", "é", "bb", "c"]


class Pieces:
    """A tokenizer whose token *i* is ``PIECES[i]``."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        """Join the pieces."""
        return "".join(PIECES[i] for i in token_ids)

    def convert_ids_to_tokens(self, index: int) -> str:
        """One piece."""
        return PIECES[index]


BYTES = ["word", "<0x0A>", "<0x61>", "<0xC3>", "<0xA9>", "\ufffd"]


def byte_fallback() -> Any:
    """A tokenizer of ``BYTES``, as Llama 2's."""
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(BYTES)}, unk_token="word"))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def cleaning() -> Any:
    """A tokenizer of single characters that takes out spaces before punctuation."""
    backend = Tokenizer(models.WordLevel({"a": 0, " ": 1, ".": 2}, unk_token="a"))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=True)


def history(ids: list[int], lengths: list[int], prompt: int) -> History:
    """One row at several lengths."""
    return History(
        torch.tensor([[ids]]),
        torch.tensor([lengths]),
        torch.tensor([prompt]),
        torch.zeros(1, dtype=torch.int64),
    )


def completes(strings: list[str], ids: list[int], prompt: int, length: int) -> int:
    """The code at *length*, from the definition."""
    text = Pieces().decode(ids[prompt:length])
    before = len(Pieces().decode(ids[prompt : length - 1]))
    found = [
        (end, -len(s), code)
        for code, s in enumerate(strings, start=1)
        for end in range(before + 1, len(text) + 1)
        if text[:end].endswith(s)
    ]
    return min(found)[-1] if found else 0


class TestStopStrings:
    @given(
        st.lists(
            st.sampled_from(["ab", "ba", "aab", "b", "bab", "éa", "abba"]),
            min_size=1,
            max_size=3,
            unique=True,
        ),
        st.lists(st.integers(0, 7), min_size=2, max_size=20),
        st.data(),
    )
    def test_equals_the_definition(self, strings: list[str], ids: list[int], data: st.DataObject) -> None:
        """Asked at any lengths in any order (rewinds included), it is a function of the ids."""
        prompt = data.draw(st.integers(1, len(ids) - 1))
        stop = StopStrings(strings, Pieces()).begin()
        for _ in range(3):
            lengths = sorted(data.draw(st.lists(st.integers(prompt + 1, len(ids)), min_size=1, max_size=4)))
            got = stop(torch.empty(0), history(ids, lengths, prompt))[0].tolist()

            assert [completes(strings, ids, prompt, n) for n in lengths] == got

    @given(data=st.data())
    def test_equals_the_definition_whatever_was_seen(self, data: st.DataObject) -> None:
        """Rows change places, go back, go on otherwise, have other prompts; columns may have own paths."""
        texts = data.draw(
            st.lists(st.lists(st.integers(0, 7), min_size=2, max_size=9), min_size=1, max_size=4)
        )
        strings = ["ab", "ba", "aab", "bab", "éa"]
        stop = StopStrings(strings, Pieces()).begin()
        for _ in range(6):
            rows, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
            paths = data.draw(st.sampled_from((1, width)))
            ids, lengths, prompts = torch.full((rows, paths, 12), 7), torch.zeros(rows, width), []
            for b in range(rows):
                chosen = [data.draw(st.sampled_from(texts)) for _ in range(paths)]
                prompts.append(data.draw(st.integers(0, min(map(len, chosen)) - 1)))
                for path, text in enumerate(chosen):
                    ids[b, path, : len(text)] = torch.tensor(text)
                for i in range(width):
                    lengths[b, i] = data.draw(st.integers(prompts[b] + 1, len(chosen[i % paths])))
            now = History(ids, lengths.long(), torch.tensor(prompts), torch.zeros(rows, dtype=torch.int64))
            expected = [
                [
                    completes(strings, ids[b, i % paths].tolist(), prompts[b], int(lengths[b, i]))
                    for i in range(width)
                ]
                for b in range(rows)
            ]

            assert expected == stop(torch.empty(0), now).tolist()

    @settings(max_examples=examples(20))
    @given(st.lists(st.integers(0, 7), min_size=2, max_size=20), st.randoms(use_true_random=False))
    def test_hundreds_of_strings_equal_the_definition(self, ids: list[int], choice: random.Random) -> None:
        """However many, some in others."""
        strings = ["".join(choice.choices("abéc", k=choice.randint(2, 5))) for _ in range(300)]
        stop = StopStrings(strings, Pieces()).begin()
        lengths = list(range(2, len(ids) + 1))

        assert [completes(strings, ids, 1, n) for n in lengths] == stop(
            torch.empty(0), history(ids, lengths, 1)
        )[0].tolist()

    @pytest.mark.mostly_slow(every=4)
    @pytest.mark.parametrize("family", FAMILIES)
    def test_equals_the_definition_in_every_script(self, family: str) -> None:
        """Strings out of the texts themselves, sought after every token in the decode of all so far."""
        choice = random.Random(0)
        for case in cases(30, families=(family,)):
            skip, tokenizer = case.skip_special_tokens, case.tokenizer
            sizes = range(len(case.ids) + 1)
            looks = [whole_characters(tokenizer, case.ids[:n], skip) for n in sizes]
            text = looks[-1].replace("\ufffd", "") or "x"
            starts = [choice.randrange(len(text)) for _ in range(3)]
            strings = [text[start : start + choice.randint(1, 4)] for start in starts]
            expected = []
            for before, after in itertools.pairwise(looks):
                known = len(os.path.commonprefix([before, after]))  # noqa: RUF071
                ends = [(after.find(s, max(0, known - len(s) + 1)) + len(s), -len(s)) for s in strings]
                found = [(*end, s) for end, s in zip(ends, strings, strict=True) if end[0] >= len(s)]
                expected.append(strings.index(min(found)[-1]) + 1 if found else 0)
            stop = StopStrings(strings, tokenizer, skip_special_tokens=skip).begin()
            got = stop(torch.empty(0), history([0, *case.ids], [1 + n for n in sizes[1:]], 1))

            assert expected == got[0].tolist(), case

    def test_other_tokens_are_read_anew(self) -> None:
        """After a row's tokens were replaced, nothing of the old ones is remembered."""
        stop = StopStrings("ab", Pieces()).begin()
        stop(torch.empty(0), history([7, 0, 0], [3], 1))

        assert 0 == int(stop(torch.empty(0), history([7, 1, 1], [3], 1)))
        assert 1 == int(stop(torch.empty(0), history([7, 0, 1], [3], 1)))

    def test_reads_each_token_once(self) -> None:
        """A row that grows by one token costs one token, whatever its length."""
        decoded: list[int] = []

        class Counting(Pieces):
            def decode(self, token_ids: list[int], **options: Any) -> str:
                decoded.append(len(token_ids))
                return super().decode(token_ids)

        stop = StopStrings("cccc", Counting()).begin()
        ids = [0] * 400
        for length in range(2, 400):
            stop(torch.empty(0), history(ids, [length], 1))

        assert sum(decoded) < 400 * 40

    @pytest.mark.parametrize("hide", [True, False])
    @pytest.mark.parametrize("seed", range(20))
    def test_cuts_the_text_where_it_matches(self, hide: bool, seed: int) -> None:
        """Streamed or collected, with or without a draft: the text ends before or after the match."""
        table = torch.randn(41, 8, generator=torch.Generator().manual_seed(seed))
        parts = {
            "stop": StopStrings(["abba", "bbé", "cc"], Pieces(), hide=hide) | MaxNewTokens(40),
            "tokenizer": Pieces(),
        }
        plain = Generator(ScriptedDecoder(table), **parts)
        fast = SpeculativeGenerator(ScriptedDecoder(table), PromptLookup(), **parts)
        result = plain([3, 1])
        assert result.text is not None
        full, finish = Pieces().decode(result.ids[0]), result.finishes[0]
        assert finish is not None
        if finish.reason == "stop_string":
            end = full.index(finish.matched, max(0, full.rfind(finish.matched) - 1))
            full = full[: end if hide else end + len(finish.matched)]

        assert [full] == result.text
        assert result.text == fast([3, 1]).text
        assert full == "".join(event.text or "" for event in plain.stream([3, 1]))

    @pytest.mark.parametrize(
        ("strings", "tokens", "codes"),
        [
            pytest.param("\n", ["word", "<0x0A>", "word"], [0, 1, 0], id="newline"),
            pytest.param("d\na", ["word", "<0x0A>", "<0x61>", "word"], [0, 0, 1, 0], id="into-a-run"),
            pytest.param("\nw", ["<0x0A>", "word", "<0x61>"], [0, 1, 0], id="out-of-a-run"),
            pytest.param("\n", ["<0x0A>", "<0x61>", "<0x0A>"], [1, 0, 1], id="each-in-a-run"),
            pytest.param("é", ["<0x61>", "<0xC3>", "<0xA9>", "<0x61>"], [0, 0, 1, 0], id="two-bytes"),
            pytest.param("\ufffd", ["<0xC3>", "<0xA9>", "word"], [0, 0, 0], id="incomplete-is-not-bad"),
            pytest.param("\ufffd", ["<0xC3>", "word", "word"], [0, 1, 0], id="bad-byte"),
            pytest.param("\ufffd", ["\ufffd", "word", "\ufffd"], [1, 0, 1], id="literal"),
        ],
    )
    def test_a_byte_token_ends_the_row_itself(
        self, strings: str, tokens: list[str], codes: list[int]
    ) -> None:
        """The code is at the token that completes the string, though its text is not final yet."""
        ids = [0, *map(BYTES.index, tokens)]
        stop = StopStrings(strings, byte_fallback()).begin()

        assert codes == stop(torch.empty(0), history(ids, list(range(2, len(ids) + 1)), 1))[0].tolist()

    def test_what_was_there_before_is_not_new_when_the_text_behind_it_changes(self) -> None:
        """A tokenizer that cleans up takes the second space away again: the first was there before."""
        stop = StopStrings(" ", cleaning()).begin()

        assert [0, 1, 1, 0] == stop(torch.empty(0), history([0, 0, 1, 1, 2], [2, 3, 4, 5], 1))[0].tolist()

    def test_some_of_what_was_held_may_be_final(self) -> None:
        """Of many spaces the last few wait, and one of those goes in the end."""
        ids = [0, 0, *[1] * 14, 2]
        stop = StopStrings("a" + " " * 13 + ".", cleaning()).begin()
        codes = stop(torch.empty(0), history(ids, list(range(2, len(ids) + 1)), 1))[0].tolist()

        assert [0] * 15 + [1] == codes

    def test_ending_names_the_string(self) -> None:
        """Each string has its finish, hidden by default."""
        stop = StopStrings(["ab", "c"], Pieces())

        assert (
            Finish("stop_string", "ab", hide=True),
            Finish("stop_string", "c", hide=True),
        ) == stop.finishes

    @pytest.mark.parametrize(
        ("strings", "error"), [("", ValueError), ([], TypeError), ([3], TypeError), (3, TypeError)]
    )
    def test_must_be_strings(self, strings: Any, error: type[Exception]) -> None:
        """An empty string would end every row at once: refused."""
        with pytest.raises(error, match="'strings' must"):
            StopStrings(strings, Pieces())

    def test_tokenizer_must_decode(self) -> None:
        """A name is no tokenizer."""
        with pytest.raises(
            TypeError, match=r"'tokenizer' must have .* decode and .*: got 'gpt2' without decode"
        ):
            StopStrings("a", "gpt2")

    @pytest.mark.parametrize("option", ["hide", "skip_special_tokens"])
    def test_options_are_true_or_false(self, option: str) -> None:
        """A string that reads as false is true: refused."""
        with pytest.raises(TypeError, match=f"'{option}' must be .*bool"):
            StopStrings("a", Pieces(), **{option: "no"})  # type: ignore[arg-type]
