"""Beam search: the best sequences, one prompt beside others, what is fed, and what is refused."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import (
    BeamSearch,
    EndOfSequence,
    Event,
    Generator,
    History,
    LowConfidence,
    MaxLength,
    MaxNewTokens,
    MaxTime,
    StochasticBeams,
    StopCondition,
    StopStrings,
    StopTokens,
)
from decodekit.decoding.cache.slots import Slots
from decodekit.processors import (
    ForcedLastToken,
    NoRepeatNgram,
    PrefixFunction,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    from_transformers,
)
from decodekit.testing import ScriptedDecoder, whole_prefix

from .scripted import TABLE, scripted

VOCAB = TABLE.shape[1]
STOP = EndOfSequence([2, 5]) | MaxNewTokens(7)
PROMPTS = [[1, 3], [4], [5, 5, 1, 0, 2], [6, 1], [0]]


class Letters:
    """A tokenizer of one letter a token."""

    eos_token_id = 2

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "".join("abcdefg"[i] for i in token_ids)

    def convert_ids_to_tokens(self, ids: int) -> str:
        return "abcdefg"[ids]


def log_probs(prefix: Sequence[int], table: Tensor = TABLE) -> list[float]:
    """The log-probabilities of all tokens after *prefix*."""
    return table[whole_prefix(prefix) % len(table)].double().log_softmax(dim=-1).tolist()


def every_sequence(
    prompt: list[int], ends: set[int], most: int, table: Tensor = TABLE
) -> list[tuple[float, list[int]]]:
    """All sequences after *prompt*, with their log-probabilities."""
    found: list[tuple[float, list[int]]] = []
    going_on = [(0.0, list[int]())]
    while going_on:
        total, ids = going_on.pop()
        for token, score in enumerate(log_probs(prompt + ids, table)):
            one = (total + score, [*ids, token])
            over = token in ends or len(one[1]) == most
            (found if over else going_on).append(one)
    return found


class TestBestSequences:
    @pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -0.5])
    @pytest.mark.parametrize("copies", [False, True])
    def test_are_those_of_brute_force_if_no_beam_is_dropped(self, penalty: float, copies: bool) -> None:
        """27 beams hold every sequence of three of three tokens."""
        table = torch.randn(31, 3, generator=torch.Generator().manual_seed(1))
        decoder = scripted(27, copies, table=table)
        options: Any = {"length_penalty": penalty, "early_stopping": "never"}
        search = BeamSearch(
            decoder, beams=27, num_return=27, stop=EndOfSequence(1) | MaxNewTokens(3), **options
        )
        for prompt in ([0], [2, 1, 0, 2]):
            found = every_sequence(prompt, {1}, 3, table)
            expected = sorted(((total / len(ids) ** penalty, ids) for total, ids in found), reverse=True)
            result = search(prompt)

            assert len(found) == len(result.ids) == 15
            assert [ids for _, ids in expected] == result.ids
            assert [score for score, _ in expected] == pytest.approx(result.scores, abs=1e-5)

    @pytest.mark.parametrize("early_stopping", [True, False, "never"])
    @pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
    def test_of_one_beam_are_greedy(self, penalty: float, early_stopping: Any) -> None:
        """With its end, and one score a prompt, however long others could become."""
        search = {"beams": 1, "stop": STOP, "length_penalty": penalty, "early_stopping": early_stopping}
        prompts = [[one, other] for one in range(VOCAB) for other in range(VOCAB)]
        assert (
            Generator(scripted(3), stop=STOP)(prompts).ids == BeamSearch(scripted(3), **search)(prompts).ids
        )

        greedy = Generator(scripted(3), stop=STOP)(PROMPTS)
        result = BeamSearch(scripted(3), **search)(PROMPTS)

        assert greedy.finishes == result.finishes
        assert [0, 1, 2, 3, 4] == result.prompt_index

    def test_are_scored_by_their_tokens(self) -> None:
        """Each token's score is its log-probability; their mean, end token included, is the score."""
        result = BeamSearch(scripted(4), beams=4, num_return=4, stop=STOP)(PROMPTS[:2])
        for row, ids in enumerate(result.ids):
            prompt = result.prompts[row]
            expected = [log_probs(prompt + ids[:i])[token] for i, token in enumerate(ids)]

            assert expected == pytest.approx(result.token_scores[row], abs=1e-6)
            assert result.log_probabilities[row] == pytest.approx(sum(expected), abs=1e-5)
            assert result.scores[row] == pytest.approx(sum(expected) / len(ids), abs=1e-5)
        assert [0, 1, 2, 3] == result.of_prompt(0)
        assert [4, 5, 6, 7] == result.of_prompt(1)
        assert result.sequences[0] == PROMPTS[0] + result.ids[0]

    def test_end_early_as_told(self) -> None:
        """True takes no more forwards than False, and False no more than "never"; "never" scores best."""
        runs = {}
        for early in (True, False, "never"):
            search = BeamSearch(
                scripted(6), beams=3, early_stopping=early, length_penalty=1.5, stop=EndOfSequence([2, 5])
            )
            runs[early] = search([4])
        forwards = [runs[early].statistics.forwards for early in (True, False, "never")]

        assert forwards == sorted(forwards)
        assert forwards[0] < forwards[2]
        assert runs["never"].scores[0] >= runs[False].scores[0] >= runs[True].scores[0]

    def test_are_fewer_where_no_more_are_possible(self) -> None:
        """Two tokens are allowed, then one: two sequences of four beams, for each prompt."""

        def allowed(row: int, prefix: Tensor) -> list[int]:
            return [1, 3] if len(prefix) == 1 else [6]

        search = BeamSearch(
            scripted(8), beams=4, num_return=3, processors=PrefixFunction(allowed), stop=MaxNewTokens(4)
        )
        result = search([[4], [1]])

        assert [0, 0, 1, 1] == result.prompt_index
        assert {(1, 6, 6, 6), (3, 6, 6, 6)} == {tuple(ids) for ids in result.ids[:2]}

    def test_say_what_left_them_no_token(self) -> None:
        """The beams so far, with the stage; also where the first token is impossible."""
        nothing = SuppressTokens(range(VOCAB))
        result = BeamSearch(scripted(4), beams=4, num_return=2, processors=nothing)([4])

        assert [[]] == result.ids
        assert ["no_token_left"] == result.finish_reasons
        assert [0.0] == result.scores
        assert "SuppressTokens" in str(result.finishes)

        late = PrefixFunction(lambda row, ids: [1, 2][: 3 - len(ids)])
        result = BeamSearch(scripted(4), beams=4, num_return=4, processors=late)([4])

        assert [2, 2] == [len(ids) for ids in result.ids]
        assert {"no_token_left"} == set(result.finish_reasons)

    def test_of_a_beam_that_overflows_are_dropped(self) -> None:
        """The others go on; if none is left, the reason is the overflow."""
        table = TABLE.clone()
        table[3] = torch.nan
        decoder = scripted(4, table=table, line=lambda prefix: 3 if prefix[-1] == 6 else len(prefix))
        result = BeamSearch(decoder, beams=4, num_return=4, stop=MaxNewTokens(4))([1])

        assert all(6 not in ids[:-1] for ids in result.ids)
        assert all(map(math.isfinite, result.scores))
        assert ["numeric_overflow"] == BeamSearch(decoder, beams=4)([1, 6]).finish_reasons


class TestNeighbours:
    @given(
        prompts=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=12), min_size=1, max_size=5),
        beams=st.integers(1, 4),
        copies=st.booleans(),
        early=st.sampled_from([True, False, "never"]),
        exact=st.booleans(),
    )
    def test_change_nothing(
        self, prompts: list[list[int]], beams: int, copies: bool, early: bool | str, exact: bool
    ) -> None:
        """A prompt among others, more than fit at once, has the sequences and scores that it has alone."""
        chain = RepetitionPenalty(1.3) | NoRepeatNgram(2) | Temperature(0.8)
        options: Any = {"early_stopping": early, "exact_width": exact, "stop": STOP, "num_return": beams}
        together = BeamSearch(scripted(9, copies), beams=beams, processors=chain, **options)(prompts)
        for number, prompt in enumerate(prompts):
            alone = BeamSearch(scripted(beams), beams=beams, processors=chain, **options)(prompt)
            own = together.of_prompt(number)

            assert alone.ids == [together.ids[row] for row in own]
            assert alone.scores == [together.scores[row] for row in own]
            assert alone.finishes == [together.finishes[row] for row in own]

    def test_leave_a_prompt_its_own_parameters(self) -> None:
        """A parameter and a limit with a value for each row: all beams of a prompt have its prompt's."""
        temperatures, limits = [0.5, 1.0, 2.0], [3, 5, 2]
        search = BeamSearch(
            scripted(12),
            beams=4,
            num_return=4,
            processors=Temperature(temperatures) | RepetitionPenalty([1.0, 1.5, 2.0]),
            stop=EndOfSequence(2) | MaxNewTokens(limits),
        )
        result = search(PROMPTS[:3])
        for number, (temperature, penalty, limit) in enumerate(
            zip(temperatures, [1.0, 1.5, 2.0], limits, strict=True)
        ):
            alone = BeamSearch(
                scripted(4),
                beams=4,
                num_return=4,
                processors=Temperature(temperature) | RepetitionPenalty(penalty),
                stop=EndOfSequence(2) | MaxNewTokens(limit),
            )(PROMPTS[number])

            assert alone.ids == [result.ids[row] for row in result.of_prompt(number)]

    def test_that_take_turns_need_one_parameter(self) -> None:
        """Before anything is fed. Limits may still have one for each prompt."""
        decoder = scripted(4)
        search = BeamSearch(decoder, beams=2, processors=Temperature([1.0, 0.5, 2.0]))
        for use in (search, search.stream):
            with pytest.raises(ValueError, match="one value for all where 3 prompts take turns"):
                use([[1], [2], [3]])
        assert [] == decoder.forwards
        stop = MaxNewTokens([1, 2, 3])

        assert [1, 2, 3] == [
            len(ids) for ids in BeamSearch(scripted(4), beams=2, stop=stop)([[1], [2], [3]]).ids
        ]

    def test_may_use_the_decoder_between_steps(self) -> None:
        """Another generator that overwrites the rows, or another search, costs forwards alone."""
        for copies in (False, True):
            decoder = scripted(4, copies)
            expected = [BeamSearch(scripted(4), beams=4, stop=STOP)(prompt).ids for prompt in PROMPTS]
            events = BeamSearch(decoder, beams=4, stop=STOP).stream(PROMPTS)
            other = Generator(decoder, stop=MaxNewTokens(3))
            seen = []
            for event in events:
                other([[6, 6], [1], [2], [5]])
                seen.append([list(event.ids)])

            assert expected == seen


class TestProcessors:
    def test_see_each_beams_own_tokens(self) -> None:
        """In a column of the prompt's row: the prompt and the new tokens of a beam, all of one length."""
        seen: list[set[tuple[int, ...]]] = []

        def spy(logits: Tensor, history: History) -> Tensor:
            assert (2, 3, VOCAB) == logits.shape
            assert torch.allclose(logits.exp().sum(dim=-1), torch.ones(2, 3))
            seen.append({tuple(history.before(1, column).tolist()) for column in range(3)})
            return logits

        result = BeamSearch(scripted(6), beams=3, num_return=3, processors=spy, stop=MaxNewTokens(4))(
            [[1], [4]]
        )

        assert [{(4,)}, 3, 3, 3] == [seen[0], *map(len, seen[1:])]
        for row in result.of_prompt(1):
            prefixes = itertools.accumulate(result.ids[row], lambda ids, token: [*ids, token], initial=[4])
            for step, prefix in enumerate(list(prefixes)[:-1]):
                assert tuple([*prefix] if isinstance(prefix, list) else [prefix]) in seen[step]

    def test_of_transformers_run(self) -> None:
        """Each column with its own ids."""
        theirs = from_transformers(lambda ids, scores: scores.index_fill(-1, ids[0, -1:], -torch.inf))
        result = BeamSearch(scripted(4), beams=4, num_return=4, processors=theirs, stop=MaxNewTokens(5))([4])

        assert len(result.ids) == 4
        for sequence in result.sequences:
            assert all(a != b for a, b in itertools.pairwise(sequence))

    def test_may_force_the_last_token(self) -> None:
        """All beams end with it."""
        forced = ForcedLastToken(6, max_new_tokens=3)
        result = BeamSearch(scripted(4), beams=4, num_return=4, processors=forced, stop=MaxNewTokens(3))([4])

        assert [6] * 4 == [ids[-1] for ids in result.ids]
        assert 4 == len({tuple(ids) for ids in result.ids})

    @pytest.mark.parametrize("rows", [2, 4, 10])
    def test_prompts_that_take_turns_keep_their_numbers(self, rows: int) -> None:
        """A function of the row's number is called with the prompt's, however many are searched together."""
        own = PrefixFunction(lambda row, ids: [row, row + 1])
        found = BeamSearch(scripted(rows), beams=2, processors=own, stop=MaxNewTokens(4))(PROMPTS)

        for number, prompt in enumerate(PROMPTS):
            alone = attrs.evolve(own, first_row=number)
            search = BeamSearch(scripted(2), beams=2, processors=alone, stop=MaxNewTokens(4))
            assert search([prompt]).ids == [found.ids[index] for index in found.of_prompt(number)]

    def test_cannot_feed_the_decoder(self) -> None:
        """A processor that uses the same decoder is refused; afterwards the decoder is free."""
        decoder = scripted(4)

        def feeds(logits: Tensor, history: History) -> Tensor:
            Generator(decoder)([1])
            return logits

        with pytest.raises(RuntimeError, match="must not use the decoder"):
            BeamSearch(decoder, beams=4, processors=feeds)([1])
        assert BeamSearch(scripted(4), beams=4)([1]).ids == BeamSearch(decoder, beams=4)([1]).ids


LONG = [1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]


class TestFeeding:
    def test_copied_rows_feed_new_tokens_alone(self) -> None:
        """The prompt once, then one token a beam and step."""
        decoder = scripted(4, copies=True)
        statistics = BeamSearch(decoder, beams=4, stop=MaxNewTokens(9))(LONG).statistics

        assert 11 + 8 * 4 == statistics.tokens_fed
        assert 9 == statistics.forwards
        assert 9 == statistics.tokens
        assert 1 == statistics.first_tokens

    def test_children_stay_in_their_parents_rows(self) -> None:
        """Without copies, little more is fed than with them."""
        statistics = BeamSearch(scripted(4), beams=4, stop=MaxNewTokens(9))(LONG).statistics

        assert 4 * 11 + 8 * 4 <= statistics.tokens_fed < 4 * 11 + 8 * 4 + 60

    @pytest.mark.parametrize("copies", [False, True])
    def test_a_prompt_that_is_cached_is_not_fed_again(self, copies: bool) -> None:
        """But for its last token, for the logits."""
        decoder = scripted(4, copies)
        search = BeamSearch(decoder, beams=4, stop=MaxNewTokens(1))
        first, second = search(LONG), search(LONG)

        assert first.ids == second.ids
        assert 0 == first.statistics.reused
        assert 10 == second.statistics.reused
        assert (1 if copies else 4) == second.statistics.tokens_fed

    def test_a_full_decoder_ends_all_beams(self) -> None:
        """With the last token that needs no position."""
        result = BeamSearch(scripted(3, max_length=6), beams=3, num_return=3, stop=MaxNewTokens(50))([1, 2])

        assert [5, 5, 5] == [len(ids) for ids in result.ids]
        assert {"max_length"} == set(result.finish_reasons)
        assert [1] == [len(ids) for ids in BeamSearch(scripted(3), beams=3)([1] * 24).ids]

    def test_nothing_is_left_in_use(self) -> None:
        """After a call, and after an iterator that was closed."""
        decoder = scripted(4)
        events = BeamSearch(decoder, beams=4, stop=STOP).stream(PROMPTS)
        next(events)
        events.close()

        assert not Slots.of(decoder).logits_in_use
        assert BeamSearch(decoder, beams=4, stop=STOP)(PROMPTS).ids == (
            BeamSearch(scripted(4), beams=4, stop=STOP)(PROMPTS).ids
        )


class TestStops:
    def test_are_named(self) -> None:
        """An end token, a stop token with its match, a limit."""
        stop = EndOfSequence(2) | StopTokens([5], hide=True) | MaxLength(6)
        result = BeamSearch(scripted(6), beams=6, num_return=6, stop=stop, tokenizer=Letters())([1, 3])
        text = result.text or []

        assert {"end_of_sequence", "stop_token", "max_length"} >= set(result.finish_reasons)
        assert len(set(result.finish_reasons)) > 1
        for ids, one, finish in zip(result.ids, text, result.finishes, strict=True):
            assert finish is not None
            hidden = finish.reason == "stop_token"
            assert one == Letters().decode(ids[:-1] if hidden else ids)
            assert (ids[-1] in (2, 5)) == (finish.matched is not None)
            assert len(ids) <= 4

    def test_come_from_the_tokenizer(self) -> None:
        """As in a generator; None leaves them out."""
        search = BeamSearch(scripted(4), beams=4, tokenizer=Letters(), num_return=4, stop=MaxNewTokens(9))

        assert "end_of_sequence" in search([1, 3]).finish_reasons
        without = BeamSearch(
            scripted(4), beams=4, tokenizer=Letters(), stop=MaxNewTokens(9), end_of_sequence=None
        )

        assert {"max_new_tokens"} == set(without([1, 3]).finish_reasons)

    @pytest.mark.parametrize(
        "stop",
        [
            StopStrings("x", Letters()) | MaxNewTokens(3),
            MaxTime(3.0),
            MaxNewTokens(3) | LowConfidence(0.1),
            EndOfSequence(2) & MaxNewTokens(3),
        ],
    )
    def test_of_other_kinds_are_refused(self, stop: StopCondition) -> None:
        """By name, before anything is fed."""
        with pytest.raises(
            ValueError, match=r"'stop' of beams must consist of .*: got (?!MaxNewTokens)\w+\("
        ):
            BeamSearch(scripted(4), beams=4, stop=stop)

    def test_of_a_subclass_are_refused(self) -> None:
        """It may decide otherwise."""

        class Mine(MaxNewTokens):
            pass

        with pytest.raises(ValueError, match="'stop' of beams must consist of"):
            BeamSearch(scripted(4), beams=4, stop=Mine(3))

    def test_for_other_rows_are_refused(self) -> None:
        """Limits of two rows with three prompts."""
        with pytest.raises(ValueError, match="'n' must be one number or one for each of the 3 rows: got 2"):
            BeamSearch(scripted(8), beams=2, stop=MaxNewTokens([1, 2]))([[1], [2], [3]])


class TestEvents:
    def test_are_whole_sequences(self) -> None:
        """One for each, when the search for its prompt is over; they add up to the result."""
        search = BeamSearch(scripted(8), beams=4, num_return=2, stop=STOP, tokenizer=Letters())
        events: list[Event] = list(search.stream(PROMPTS))
        result = search(PROMPTS)

        assert 10 == len(events)
        for number in range(5):
            own = [(list(e.ids), e.text, e.finish) for e in events if e.row == number]
            assert own == [
                (result.ids[row], (result.text or [])[row], result.finishes[row])
                for row in result.of_prompt(number)
            ]

    @pytest.mark.parametrize("kind", [BeamSearch, StochasticBeams])
    def test_what_cannot_decode_or_count_is_refused_before_the_search(self, kind: Any) -> None:
        """As by a generator."""
        decoder = scripted(8)
        for make in (lambda search: search(PROMPTS), lambda search: list(search.stream(PROMPTS))):
            with pytest.raises(TypeError, match=r"'tokenizer' must have .* decode and .*: got 5"):
                make(kind(decoder, beams=2, stop=STOP, tokenizer=5))
        with pytest.raises(TypeError, match=r"'statistics' must be Statistics\(\): got 5"):
            kind(decoder, beams=2, stop=STOP).stream(PROMPTS, statistics=5)

        assert not decoder.forwards

    def test_are_not_streamed(self) -> None:
        """A streamer is refused with the reason."""

        class Streamer:
            def put(self, ids: Tensor) -> None: ...

            def end(self) -> None: ...

        anything: Any = Streamer()
        with pytest.raises(ValueError, match="'streamer' must be None: no token of beams is final"):
            BeamSearch(scripted(4), beams=4)([1], streamer=anything)

    def test_begin_with_an_echoed_prompt(self) -> None:
        """In each sequence."""
        search = BeamSearch(
            scripted(4), beams=2, num_return=2, tokenizer=Letters(), echo_prompt=True, stop=MaxNewTokens(2)
        )
        result = search([1, 3])

        assert [Letters().decode(sequence) for sequence in result.sequences] == result.text


DECODER = ScriptedDecoder(TABLE, batch_size=4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"beams": 0}, ValueError, "'beams' must be >= 1: 0"),
        ({"beams": 2.0}, TypeError, "'beams' must be a whole number: got 2.0"),
        ({"beams": 5}, ValueError, "'beams' must be at most 4, the decoder's rows: got 5. Compile .*=5"),
        ({"beams": 2, "num_return": 3}, ValueError, "'num_return' must be at most 2, .*: got 3"),
        ({"beams": 2, "num_return": 0}, ValueError, "'num_return' must be >= 1: 0"),
        ({"beams": 2, "early_stopping": "always"}, ValueError, "'early_stopping' must be .*: got 'always'"),
        ({"beams": 2, "early_stopping": 1}, ValueError, "'early_stopping' must be .*: got 1"),
        ({"beams": 2, "length_penalty": "1"}, TypeError, "'length_penalty' must be a number: got '1'"),
        ({"beams": 2, "length_penalty": math.nan}, ValueError, "'length_penalty' must be from .*: got nan"),
        ({"beams": 2, "length_penalty": 33}, ValueError, "'length_penalty' must be from -32 to 32: got 33.0"),
        ({"beams": 2, "processors": 3}, TypeError, "'processors' must be callable"),
        ({"beams": 2, "stop": 3}, TypeError, "'stop' must be callable, such as MaxNewTokens.*: got 3"),
        ({"beams": 2, "echo_prompt": True}, ValueError, "'tokenizer' must be given"),
        ({"beams": 2, "exact_width": 1}, TypeError, "'exact_width'"),
        ({"beams": 2, "end_of_sequence": "none"}, ValueError, "'end_of_sequence' must be"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """With the option, the rule and the value."""
    with pytest.raises(error, match=message):
        BeamSearch(DECODER, **options)
