"""What a decoder thinks of a prompt."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Generator, Logprobs, MaxNewTokens, Sample, TokenLogprob
from decodekit.processors import ForcedFirstToken, MinNewTokens, RepetitionPenalty, Temperature, TopK
from decodekit.testing import ScriptedDecoder, whole_prefix

from ..sampling.by_definition import check_alike, logprob_of

VOCAB = 7
TABLE = (6 * torch.randn(41, VOCAB, generator=torch.Generator().manual_seed(5))).round() / 4
ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=23), min_size=1, max_size=3)


def generator(**parts: Any) -> Generator:
    """Three rows over a decoder that scores five columns."""
    return Generator(ScriptedDecoder(TABLE, batch_size=3), **{"stop": MaxNewTokens(4), **parts})


def by_hand(prompt: list[int], top: int) -> list[TokenLogprob | None]:
    """Looked up token by token."""
    lines = [TABLE[whole_prefix(prompt[:i]) % len(TABLE)].tolist() for i in range(1, len(prompt))]
    return [None, *(logprob_of(token, line, top) for token, line in zip(prompt[1:], lines, strict=True))]


class TestPromptLogprobs:
    @given(st.lists(st.tuples(st.sampled_from(("score", "generate", "exact")), ROWS), max_size=5))
    def test_by_definition(self, calls: list[tuple[str, list[list[int]]]]) -> None:
        """Ragged rows, in chunks, whatever the cache holds; and the record stays true for generations."""
        decoder = ScriptedDecoder(TABLE, batch_size=3)
        for kind, rows in calls:
            generate = Generator(decoder, stop=MaxNewTokens(4), exact_width=kind == "exact")
            if kind == "generate":
                expected = Generator(ScriptedDecoder(TABLE, batch_size=3), stop=MaxNewTokens(4))(rows)

                assert expected.ids == generate(rows).ids
                continue
            for prompt, logprobs in zip(
                rows, generate.prompt_logprobs(rows, logprobs=Logprobs(2)), strict=True
            ):
                check_alike(by_hand(prompt, 2), logprobs)

    def test_the_chosen_alone(self) -> None:
        """By default the raw stage, without top tokens."""
        (logprobs,) = generator().prompt_logprobs([1, 2, 3])

        check_alike(by_hand([1, 2, 3], 0), logprobs)

    def test_a_row_of_one_token(self) -> None:
        """Nothing precedes it, and nothing is fed."""
        generate = generator()

        assert [[None], [None]] == generate.prompt_logprobs([[1], [2]])
        assert [] == generate.decoder.forwards  # type: ignore[attr-defined]

    def test_in_chunks(self) -> None:
        """Forwards of the scored width, the last one as narrow as it may be."""
        generate = generator()
        prompt = [1, 2, 0] * 4  # of which 11 are followed
        generate.prompt_logprobs(prompt)

        assert [5, 5, 1] == generate.decoder.forwards  # type: ignore[attr-defined]

    def test_a_full_row(self) -> None:
        """A prompt may fill every position."""
        prompt = [n % VOCAB for n in range(64)]
        (logprobs,) = generator().prompt_logprobs(prompt)

        check_alike(by_hand(prompt, 0), logprobs)

    def test_what_is_fed_is_scored_again(self) -> None:
        """The cache keeps no logits: a second call gives the same, and the cache stays valid."""
        generate = generator()
        prompt = [1, 2, 0] * 4
        generate(prompt)
        first, second = (generate.prompt_logprobs(prompt, logprobs=Logprobs(3)) for _ in range(2))
        check_alike(by_hand(prompt, 3), first[0])

        assert first == second
        generate.decoder.forwards.clear()  # type: ignore[attr-defined]
        generate(prompt)

        # What the generation before had fed is there still.
        assert [1] * 4 == generate.decoder.forwards  # type: ignore[attr-defined]

    def test_a_generation_reuses_it(self) -> None:
        """Only the last token is left to be fed."""
        generate = generator()
        prompts = [[1, 2, 0] * 4, [2, 2]]
        generate.prompt_logprobs(prompts)
        generate.decoder.forwards.clear()  # type: ignore[attr-defined]
        result = generate(prompts)

        assert [1] * 4 == generate.decoder.forwards  # type: ignore[attr-defined]
        assert generator()(prompts).ids == result.ids

    def test_beside_a_stream(self) -> None:
        """Between the rounds of a generation on the same decoder neither loses anything."""
        generate = generator(sampler=Sample(seed=0))
        expected = generate([[1, 2], [3]]).ids
        rows: list[list[int]] = [[], []]
        for event in generate.stream([[1, 2], [3]]):
            rows[event.row] += event.ids
            check_alike(by_hand([4, 5, 6], 1), generate.prompt_logprobs([4, 5, 6], logprobs=Logprobs(1))[0])

        assert expected == rows

    @pytest.mark.parametrize("stage", ["raw", "ForcedFirstToken", 2, "TopK", "MinNewTokens", "processed"])
    def test_after_a_stage(self, stage: str | int) -> None:
        """Each token as the first one after a prompt that ends before it."""
        chain = (
            ForcedFirstToken([0, 1, 2, 4, 5])
            | RepetitionPenalty(1.5)
            | Temperature(0.7)
            | TopK(4)
            | MinNewTokens(2, [0])
        )
        generate = generator(processors=chain, sampler=Sample(1), stop=MaxNewTokens(1))
        prompts = [[1, 2, 0, 3, 1, 1, 4, 0], [5, 6, 0]]
        found = generate.prompt_logprobs(prompts, logprobs=Logprobs(VOCAB, stage))
        for prompt, logprobs in zip(prompts, found, strict=True):
            for i, logprob in enumerate(logprobs[1:], start=1):
                first = generate(prompt[:i], logprobs=Logprobs(VOCAB, stage)).logprobs

                assert first is not None
                assert logprob is not None
                assert first[0][0].top == logprob.top
                assert (logprob.id, logprob.logprob) in logprob.top

    def test_of_what_was_generated(self) -> None:
        """A generation's own log-probabilities are those of its sequence, bit for bit."""
        generate = generator(sampler=Sample(2), stop=MaxNewTokens([3, 12, 7]))
        prompts = [[1, 2], [3], [4, 5, 6, 1, 0, 0]]
        result = generate(prompts, logprobs=Logprobs(2))
        again = generate.prompt_logprobs(result.sequences, logprobs=Logprobs(2))

        assert result.logprobs == [row[len(prompt) :] for row, prompt in zip(again, prompts, strict=True)]

    def test_a_batch_row_is_the_row_alone(self) -> None:
        """Bit for bit."""
        rows = [[1, 2, 3, 4, 5, 6, 0], [1], [2, 2]]
        together = generator().prompt_logprobs(rows, logprobs=Logprobs(3))

        assert together == [generator().prompt_logprobs(row, logprobs=Logprobs(3))[0] for row in rows]

    @pytest.mark.parametrize(
        ("prompts", "message"),
        [
            ([[]], "prompt 0 must have 1 to 64 tokens"),
            ([[1, VOCAB]], "the ids of prompt 0 must be 0 to 6"),
            ([[1]] * 4, "'prompts' must be 1 to 3"),
        ],
    )
    def test_refuses(self, prompts: Any, message: str) -> None:
        """What a call refuses."""
        with pytest.raises(ValueError, match=message):
            generator().prompt_logprobs(prompts)
