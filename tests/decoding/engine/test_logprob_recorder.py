"""Log-probabilities of a run, at every stage of its chain."""

import asyncio
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import (
    AdaptiveP,
    EndOfSequence,
    Finish,
    Generator,
    Greedy,
    History,
    Logprobs,
    MaxNewTokens,
    Mirostat,
    Sample,
    SamplingPipeline,
    StopTokens,
    TokenLogprob,
)
from decodekit.decoding.engine.logprob_recorder import LogprobRecorder, recorder
from decodekit.processors import (
    RemoveInvalid,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
)
from decodekit.testing import ScriptedDecoder, whole_prefix

from ..sampling.by_definition import check_alike, logprob_of

VOCAB = 9
# A multiple of a quarter, so that there are ties.
TABLE = (6 * torch.randn(37, VOCAB, generator=torch.Generator().manual_seed(2))).round() / 4
PROMPTS = [[1, 2], [3], [4, 5, 6, 7]]
CHAIN = (RepetitionPenalty(1.3), Temperature(0.7), TopK(5), TopP(0.9))
STAGES = ["raw", "RepetitionPenalty", "Temperature", "TopK", "TopP", "processed", 0, 1, 2, 3]


def chain(parts: Any) -> Any:
    """The parts, joined."""
    whole = None
    for part in parts:
        whole = part if whole is None else whole | part
    return whole


def generator(*parts: Any, table: Tensor = TABLE, **others: Any) -> Generator:
    """Three rows over a decoder whose logits depend on every token."""
    decoder = ScriptedDecoder(table, batch_size=3)
    return Generator(decoder, processors=chain(parts), **{"stop": MaxNewTokens(8), **others})


def by_hand(prompt: list[int], new: list[int], parts: Any, top: int) -> list[TokenLogprob]:
    """Stage after stage, token after token."""
    expected = []
    for i, token in enumerate(new):
        prefix = prompt + new[:i]
        length = torch.tensor([[len(prefix)]])
        history = History(
            torch.tensor(prefix)[None, None], length, torch.tensor([len(prompt)]), torch.zeros(1).long()
        )
        logits = TABLE[whole_prefix(prefix) % len(TABLE)][None, None]
        for part in parts:
            logits = part(logits, history)
        expected.append(logprob_of(token, logits[0, 0].tolist(), top))
    return expected


class TestStages:
    @given(st.sampled_from(STAGES), st.booleans(), st.integers(0, VOCAB), st.integers(0, 50))
    def test_by_definition(self, stage: str | int, greedy: bool, top: int, seed: int) -> None:
        """After each stage, by name and by place, also where the choice does not need it."""
        sampler = Greedy() if greedy else Sample(seed)
        result = generator(*CHAIN, sampler=sampler)(PROMPTS, logprobs=Logprobs(top, stage))
        run = {**{type(part).__name__: i + 1 for i, part in enumerate(CHAIN)}, "raw": 0, "processed": 4}
        parts = CHAIN[: run[stage] if isinstance(stage, str) else stage + 1]

        assert result.logprobs is not None
        for prompt, new, logprobs in zip(PROMPTS, result.ids, result.logprobs, strict=True):
            check_alike(by_hand(prompt, new, parts, top), logprobs)

    @pytest.mark.parametrize("stage", ["raw", "processed"])
    def test_without_a_chain(self, stage: str) -> None:
        """The token was sampled from the decoder's own logits."""
        result = generator()(PROMPTS, logprobs=Logprobs(2, stage))

        assert result.logprobs is not None
        for prompt, new, logprobs in zip(PROMPTS, result.ids, result.logprobs, strict=True):
            check_alike(by_hand(prompt, new, (), 2), logprobs)
            assert all(one.rank == 1 and one.top[0] == (one.id, one.logprob) for one in logprobs)

    def test_of_one_processor(self) -> None:
        """It is a chain of one stage."""
        generate = generator(Temperature(2.0), sampler=Sample(seed=0))

        assert generate(PROMPTS, logprobs=Logprobs(stage=0)).logprobs == (
            generate(PROMPTS, logprobs=Logprobs(stage="processed")).logprobs
        )

    def test_of_a_function(self) -> None:
        """It goes by its own name."""

        def only_even(logits: Tensor, history: History) -> Tensor:
            return logits.masked_fill(torch.arange(VOCAB) % 2 == 1, -torch.inf)

        result = generator(Temperature(2.0), only_even, TopK(1))([1], logprobs=Logprobs(VOCAB, "only_even"))

        assert result.logprobs is not None
        for one in result.logprobs[0]:
            assert {1, 3, 5, 7} == {token for token, logprob in one.top if logprob == -math.inf}

    @pytest.mark.parametrize(
        ("stage", "message"),
        [
            ("TopP", r"\(0 'TopK', 1 'Temperature', 2 'TopK'\): got 'TopP'$"),
            ("TopK", "got 'TopK', which are 2: give the place of one$"),
            (3, "got 3$"),
            (-1, "got -1$"),
            ("top_k", "got 'top_k'$"),
        ],
    )
    def test_refuses_an_unknown_stage(self, stage: str | int, message: str) -> None:
        """By listing those that there are, before anything is decoded."""
        generate = generator(TopK(5), Temperature(1.5), TopK(3))
        for call in (generate, generate.stream, generate.astream, generate.prompt_logprobs):
            with pytest.raises(ValueError, match=f"'stage' must be 'raw', 'processed' or one .*{message}"):
                call(PROMPTS, logprobs=Logprobs(stage=stage))  # type: ignore[operator]

        assert [] == generate.decoder.forwards  # type: ignore[attr-defined]

    def test_refuses_a_stage_where_there_is_none(self) -> None:
        """There are only the decoder's own logits."""
        with pytest.raises(ValueError, match=r"one of the chain's stages \(none\): got 'TopK'"):
            generator()(PROMPTS, logprobs=Logprobs(stage="TopK"))

    def test_refuses_what_is_no_request(self) -> None:
        """A number could be meant as anything."""
        for wrong in (5, True, Logprobs):
            with pytest.raises(
                TypeError, match=r"'logprobs' must be a request, such as Logprobs\(top=5\): got"
            ):
                generator()(PROMPTS, logprobs=wrong)  # type: ignore[arg-type]

    def test_refuses_more_than_there_are(self) -> None:
        """The whole vocabulary is the most."""
        assert generator()([1], logprobs=Logprobs(VOCAB)).logprobs is not None
        with pytest.raises(ValueError, match="'top' must be <= 9, the vocabulary: got 10"):
            generator()([1], logprobs=Logprobs(VOCAB + 1))


class TestRun:
    @pytest.mark.parametrize("sampler", [Mirostat(3.0, 0.3), AdaptiveP(0.3), Sample(3)], ids=repr)
    def test_a_row_is_the_same_alone(self, sampler: Any) -> None:
        """Bit for bit, beside others that end otherwise, also where the sampler follows the logits."""
        request = Logprobs(3, "processed")
        generate = generator(*CHAIN, sampler=sampler, stop=MaxNewTokens([2, 8, 5]))
        together = generate(PROMPTS, logprobs=request)

        assert together.logprobs is not None
        for row, prompt in enumerate(PROMPTS):
            check_alike(by_hand(prompt, together.ids[row], CHAIN, 3), together.logprobs[row])
            alone = generator(*CHAIN, sampler=sampler)(prompt, random_streams=[row], logprobs=request)

            assert alone.logprobs is not None
            assert together.logprobs[row] == alone.logprobs[0][: [2, 8, 5][row]]

    def test_events_add_up(self) -> None:
        """One for each id, in every event, however they are come by; and they survive JSON."""
        generate = generator(*CHAIN, sampler=Sample(1))
        request = Logprobs(2, "TopK")
        expected = generate(PROMPTS, logprobs=request)

        async def asynchronous() -> list[Any]:
            return [event async for event in generate.astream(PROMPTS, logprobs=request)]

        for events in (list(generate.stream(PROMPTS, logprobs=request)), asyncio.run(asynchronous())):
            rows: list[list[TokenLogprob]] = [[], [], []]
            for event in events:
                assert event.logprobs is not None
                assert event.ids == tuple(one.id for one in event.logprobs)
                json.dumps(event.as_dict(), allow_nan=False)
                rows[event.row] += event.logprobs

            assert expected.logprobs == rows
        assert expected.ids == [[one.id for one in row] for row in expected.logprobs or []]

    def test_a_streamer_hears_of_them(self) -> None:
        """With the events."""
        heard: list[Any] = []

        class Listener:
            def put_event(self, event: Any) -> None:
                heard.extend(event.logprobs)

            def end(self) -> None:
                pass

        result = generator()([1, 2], streamer=Listener(), logprobs=Logprobs())

        assert [heard] == result.logprobs

    def test_changes_nothing_else(self) -> None:
        """The text is the same, and so are the forwards."""
        generate = generator(*CHAIN, sampler=Sample(7))
        plain, told = generate(PROMPTS), generate(PROMPTS, logprobs=Logprobs(2, "processed"))

        assert (plain.ids, plain.finishes) == (told.ids, told.finishes)
        assert "logprobs" in told.statistics.seconds

    def test_costs_nothing_where_not_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is recorded, nothing is None-padded, and the last stages are still left out."""
        run: list[str] = []

        def counted(logits: Tensor, history: History) -> Tensor:
            run.append("stage")
            return logits

        counted.keeps_argmax = True  # type: ignore[attr-defined]
        monkeypatch.setattr(LogprobRecorder, "of_new_tokens", lambda *parts: run.append("recorder"))
        table = torch.eye(VOCAB).roll(1, dims=1)
        generate = generator(counted, TopK(3), table=8 * table, sampler=Greedy())
        result = generate([[1, 2]])

        assert [] == run
        assert result.logprobs is None
        assert all(event.logprobs is None for event in generate.stream([[1, 2]]))
        assert "logprobs" not in result.statistics.seconds

    def test_a_stop_token_is_told(self) -> None:
        """Hidden or not, it is among the ids; a row that has no token left tells of none there."""
        for stop in (EndOfSequence(range(VOCAB)), StopTokens(range(VOCAB))):
            result = generator(stop=stop)(PROMPTS, logprobs=Logprobs())

            assert result.logprobs is not None
            assert [[one.id for one in row] for row in result.logprobs] == result.ids
            assert [1, 1, 1] == [len(row) for row in result.logprobs]

    def test_a_row_without_a_token(self) -> None:
        """It ends with no log-probability, and the others go on."""

        def none_for_the_first(logits: Tensor, history: History) -> Tensor:
            out = logits.clone()
            out[0][history.num_generated()[0] >= 2] = -torch.inf
            return out

        result = generator(none_for_the_first)(PROMPTS, logprobs=Logprobs(1, "processed"))

        assert result.logprobs is not None
        assert [2, 8, 8] == [len(row) for row in result.logprobs]
        assert "no_token_left" == (result.finishes[0] or Finish("")).reason

    def test_emptied_at_once(self) -> None:
        """Requested and empty is not the same as not requested."""
        result = generator(SuppressTokens(range(VOCAB)))(PROMPTS, logprobs=Logprobs())
        events = list(generator(SuppressTokens(range(VOCAB))).stream(PROMPTS, logprobs=Logprobs()))

        assert [[], [], []] == result.logprobs
        assert [(), (), ()] == [event.logprobs for event in events]

    def test_a_forced_token(self) -> None:
        """It was forbidden at the stage before, and is certain after it."""

        def four(logits: Tensor, history: History) -> Tensor:
            return torch.where(torch.arange(VOCAB) == 4, 0.0, -torch.inf).expand_as(logits)

        parts = (SuppressTokens([4]), four)
        before, after = (generator(*parts)([1], logprobs=Logprobs(stage=stage)).logprobs for stage in (0, 1))

        assert before is not None
        assert after is not None
        assert TokenLogprob(4, -math.inf, 9) == before[0][0]
        assert TokenLogprob(4, 0.0, 1) == after[0][0]

    def test_of_a_decoder_that_says_nan(self) -> None:
        """After a chain that removes it there are probabilities; the raw logits have none."""
        table = TABLE.clone()
        table[:, 3] = torch.nan
        generate = generator(RemoveInvalid(), table=table)
        raw, processed = (
            generate([1, 2], logprobs=Logprobs(2, stage)).logprobs for stage in ("raw", "processed")
        )

        assert raw is not None
        assert processed is not None
        assert all(math.isnan(one.logprob) for one in raw[0])
        assert all(one.logprob < 0 for one in processed[0])

    def test_of_a_decoder_in_half_precision(self) -> None:
        """Of a kind that numpy does not know."""
        pipeline = SamplingPipeline(None, Greedy())
        logits = torch.tensor([[[0.5, -1.25, 0.5]]], dtype=torch.bfloat16)
        history = History(*(torch.ones(shape).long() for shape in ((1, 1, 1), (1, 1), (1,), (1,))))
        ((answer,),) = recorder(Logprobs(3), pipeline, 3).of_prompt(logits, history, [[2]])

        check_alike([logprob_of(2, [0.5, -1.25, 0.5], 3)], [answer])
