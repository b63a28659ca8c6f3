"""Token healing."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from decodekit.decoding import Generator, Logprobs, MaxNewTokens, Sample, StopStrings
from decodekit.decoding.strategies.token_healing import HealedPrompt, TokenHealing, heal_prompt
from decodekit.decoding.text.piece_index import PieceIndex
from decodekit.processors import ForcedPrefix, Temperature, TopK
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder, last_token

from ...processors.constraints.pieces import Pieces
from ...speculation.drafters.tokenizers_for_drafts import KINDS, TEXT, tokenizer, writer
from ...strategies import examples

URL = Pieces(["<bos>", "http", ":", "://", "//", "s", "a", "aa", "?"])


def scripted(known: Any, seed: int = 0, **shape: Any) -> ScriptedDecoder:
    """Random logits over the vocabulary of *known*."""
    generator = torch.Generator().manual_seed(seed)
    return ScriptedDecoder(2 * torch.randn(31, len(known), generator=generator), **shape)


class TestHealPrompt:
    def test_removes_a_token_that_others_extend(self) -> None:
        """After "http" and ":" the prompt may have meant "://"."""
        assert HealedPrompt([0, 1], b":") == heal_prompt([0, 1, 2], URL)

    def test_leaves_a_token_that_none_extends(self) -> None:
        """Nothing could have been joined."""
        assert HealedPrompt([0, 1, 3], b"") == heal_prompt([0, 1, 3], URL)

    def test_removes_several_that_are_a_part_of_one(self) -> None:
        """Both ":" and "/" of "://", and no more than *most*."""
        pieces = Pieces(["x", ":", "/", "://", "/x"])

        assert HealedPrompt([0], b":/") == heal_prompt([0, 1, 2], pieces)
        assert HealedPrompt([0, 1], b"/") == heal_prompt([0, 1, 2], pieces, most=1)

    def test_keeps_special_tokens_and_one_token(self) -> None:
        """A generator needs a token to begin with."""
        assert HealedPrompt([0], b"a") == heal_prompt([0, 6], URL)
        assert HealedPrompt([6], b"") == heal_prompt([6], URL)
        assert HealedPrompt([6, 0], b"") == heal_prompt([6, 0], URL)

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_left_and_what_was_removed_are_the_prompt(self, kind: str) -> None:
        """At every cut of a text; the removed bytes are a proper part of some token."""
        known = tokenizer(kind)
        ids, index = known(TEXT)["input_ids"], PieceIndex.of(known)

        removed = 0
        for size in range(1, len(ids) + 1):
            healed = heal_prompt(ids[:size], known)

            assert index.text_of(ids[:size]) == index.text_of(healed.ids) + healed.removed
            assert healed.ids == ids[: len(healed.ids)]
            assert not healed.removed or index.can_extend(healed.removed)
            removed += len(healed.removed) > 0
        assert removed


class TestTokenHealing:
    @settings(deadline=None, max_examples=examples(40))
    @given(
        kind=st.sampled_from(KINDS),
        cut=st.integers(4, 60),
        seed=st.integers(0, 1000),
        echo=st.booleans(),
    )
    def test_the_text_follows_the_prompt_as_it_was_written(
        self, kind: str, cut: int, seed: int, echo: bool
    ) -> None:
        """Prompt and text are the text of all tokens, at any cut of a text, in every family of tokenizers."""
        known = tokenizer(kind)
        prompt = TEXT[:cut]
        generator = Generator(
            scripted(known, seed, max_length=128),
            processors=TopK(40),
            sampler=Sample(seed=seed),
            stop=MaxNewTokens(12),
            tokenizer=known,
            echo_prompt=echo,
        )

        result = TokenHealing(generator, ForcedPrefix)(prompt)

        assert result.text is not None
        whole = known.decode(result.sequences[0], skip_special_tokens=True)
        assert PieceIndex.of(known).text_of(result.sequences[0]).lstrip().startswith(prompt.encode())
        # A run of byte tokens that is not UTF-8 is decoded to U+FFFD as a whole.
        if kind != "pieces-few":
            assert whole == (result.text[0] if echo else prompt + result.text[0])
            assert whole.startswith(prompt)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_model_goes_on_as_with_its_own_tokens(self, kind: str) -> None:
        """Cut anywhere, a decoder that knows one text by its tokens writes the rest of it."""
        known, text = tokenizer(kind), TEXT[:110]
        generator = Generator(writer(kind, text, max_length=256), stop=MaxNewTokens(220), tokenizer=known)

        for cut in range(5, 100, 13):
            result = TokenHealing(generator, ForcedPrefix)(text[:cut])

            assert result.text is not None
            assert text == text[:cut] + result.text[0]

    def test_rows_of_a_batch_are_the_rows_alone(self) -> None:
        """Each prompt has its own removed text, or none."""
        known = tokenizer("bytes")
        parts: dict[str, Any] = {
            "processors": Temperature(0.7),
            "sampler": Sample(seed=1),
            "stop": MaxNewTokens(8),
            "tokenizer": known,
        }
        prompts = ["The quick bro", "lazy d", "x"]
        together = TokenHealing(Generator(scripted(known, batch_size=3), **parts), ForcedPrefix)(prompts)
        alone = TokenHealing(Generator(scripted(known), **parts), ForcedPrefix)

        assert together.text is not None
        for row, prompt in enumerate(prompts):
            assert [together.text[row]] == alone(prompt, random_streams=[row]).text

    def test_a_stream_adds_up_to_the_result(self) -> None:
        """Event by event, with the removed text cut off."""
        known = tokenizer("pieces")
        generator = Generator(
            scripted(known, batch_size=2), sampler=Sample(seed=2), stop=MaxNewTokens(9), tokenizer=known
        )
        healing, prompts = TokenHealing(generator, ForcedPrefix), ["The quick bro", "waves ar"]

        result, texts = healing(prompts), ["", ""]
        for event in healing.stream(prompts):
            texts[event.row] += event.text or ""

        assert result.text == texts

    @pytest.mark.parametrize(
        ("pieces", "shown"),
        [
            pytest.param(["a", " ", ".", "b"], ".b", id="space-before-a-stop"),
            pytest.param(["a", "  ", ".", "b"], ".b", id="one-of-two-spaces"),
            pytest.param(["a", " ", "b", "."], "b.", id="space-that-stays"),
            pytest.param(["a", " '", " b", "."], "b.", id="spaces-around-an-apostrophe"),
            pytest.param(["a", " n'", "t", "."], "t.", id="the-prompt-is-in-the-joined-word"),
        ],
    )
    def test_cleaned_up_spaces_cost_no_character(self, pieces: list[str], shown: str) -> None:
        """Prompt and continuation together lose a space, which the prompt alone has."""
        known = Pieces([*pieces, "<end>"])
        known.clean_up_tokenization_spaces = True
        decoder = ScriptedDecoder(torch.eye(5).roll(1, 1), line=last_token)
        healing = TokenHealing(Generator(decoder, stop=MaxNewTokens(2), tokenizer=known), ForcedPrefix)

        assert [shown] == healing([[0, 1]]).text
        assert shown == "".join(event.text or "" for event in healing.stream([[0, 1]]))

    def test_speculation_changes_nothing(self) -> None:
        """A drafter runs ahead of the constraint and after it."""
        known = tokenizer("bytes")
        parts: dict[str, Any] = {"sampler": Sample(seed=5), "stop": MaxNewTokens(16), "tokenizer": known}
        decoder = scripted(known)
        plain = TokenHealing(Generator(decoder, **parts), ForcedPrefix)("The quick bro")
        fast = SpeculativeGenerator(decoder, PromptLookup(), num_draft_tokens=4, **parts)

        assert plain.ids == TokenHealing(fast, ForcedPrefix)("The quick bro").ids

    def test_more_prompts_than_rows_with_one_removed_text(self) -> None:
        """They take turns."""
        known = tokenizer("bytes")
        generator = Generator(scripted(known), stop=MaxNewTokens(4), tokenizer=known)

        result = TokenHealing(generator, ForcedPrefix)(["The quick bro", "The quick bro"])

        assert 2 == len(result.ids)

    def test_several_samples_are_the_prompt_given_so_many_times(self) -> None:
        """Each prompt's rows lie together, with its own removed text."""
        known = tokenizer("bytes")
        decoder = scripted(known, batch_size=4)
        generator = Generator(decoder, sampler=Sample(seed=4), stop=MaxNewTokens(5), tokenizer=known)
        healing = TokenHealing(generator, ForcedPrefix)

        one, other = "The quick bro", "lazy d"
        assert healing([one, one, other, other]).text == healing([one, other], num_samples=2).text
        with pytest.raises(ValueError, match="'num_samples' must be a whole number >= 1: got 0"):
            healing(one, num_samples=0)

    def test_other_parts_are_the_generators(self) -> None:
        """Stop strings among them, which end the shown text."""
        known = tokenizer("bytes")
        stop = StopStrings("fox", known) | MaxNewTokens(60)
        generator = Generator(writer("bytes", TEXT[:60]), stop=stop, tokenizer=known)

        assert ["wn "] == TokenHealing(generator, ForcedPrefix)("The quick bro").text

    def test_refusals(self) -> None:
        """No generator, no tokenizer, no function, no number."""
        known = tokenizer("bytes")
        generator = Generator(scripted(known), tokenizer=known)
        anything: Any = None

        with pytest.raises(TypeError, match="'generator' must be a Generator"):
            TokenHealing(anything, ForcedPrefix)
        with pytest.raises(ValueError, match="'generator' must have a tokenizer"):
            TokenHealing(Generator(scripted(known)), ForcedPrefix)
        with pytest.raises(TypeError, match="'constrain' must be callable"):
            TokenHealing(generator, anything)
        with pytest.raises(ValueError, match="'most' must be None or a whole number >= 1: got 0"):
            TokenHealing(generator, ForcedPrefix, most=0)


@pytest.mark.parametrize("text", ["The quick bro", "The quick brown "])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_stage_by_number_is_one_of_the_generators_chain(text: str, streamed: bool) -> None:
    """Whether or not the constraint comes before it."""
    known = tokenizer("bytes")
    chain = Temperature(0.3) | TopK(5)
    generator = Generator(scripted(known), processors=chain, tokenizer=known, stop=MaxNewTokens(4))
    healing = TokenHealing(generator, ForcedPrefix)

    def found(stage: str | int) -> list[list[Any]]:
        asked = Logprobs(stage=stage)
        if not streamed:
            return [[one.logprob for one in row] for row in healing(text, logprobs=asked).logprobs]
        events = list(healing.stream(text, logprobs=asked))
        return [[one.logprob for event in events for one in event.logprobs]]

    assert found(0) == found("Temperature") != found(1) == found("TopK")
    with pytest.raises(ValueError, match="'stage' must be"):
        found(2)
    with pytest.raises(ValueError, match="'stage' must be"):
        found("ForcedPrefix")
