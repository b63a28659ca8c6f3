"""What all samplers share that depend on past logits, in and out of the generator."""

from typing import Any

import pytest
import torch

from decodekit.decoding import AdaptiveP, Generator, Greedy, MaxNewTokens, Mirostat, SamplingPipeline
from decodekit.decoding.sampling import noise
from decodekit.decoding.sampling.stateful_sampler import begin_sampler
from decodekit.processors import MinP, SuppressTokens
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

from .by_definition import history_at

TABLE = 2 * torch.randn(53, 40, generator=torch.Generator().manual_seed(4))
SAMPLERS = [Mirostat(3.0, 0.3), Mirostat(3.0, 0.3, version=1), Mirostat(2.0, of_model=True), AdaptiveP(0.3)]
PROMPTS = [[1, 2], [3], [4, 5, 6, 7]]
STREAMS = noise.random_streams(torch.arange(3), 0)

every = pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)


def generator(sampler: Any, **parts: Any) -> Generator:
    """Three rows over a decoder whose logits depend on every token."""
    return Generator(
        ScriptedDecoder(TABLE, batch_size=3), sampler=sampler, **{"stop": MaxNewTokens(20), **parts}
    )


def state(run: Any) -> list[Any]:
    """Everything that a run holds, as lists."""
    names = ("length", "chosen", "mu", "average")
    return [getattr(run, name).tolist() for name in names if hasattr(run, name)]


@every
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_a_logit_without_a_surprise(sampler: Any, odd: float) -> None:
    """NaN ends the row, as with other samplers, infinity is sampled, and neither is learned from."""
    logits = torch.zeros(1, 1, 40)
    logits[0, 0, 7] = odd
    run = begin_sampler(sampler, 1)
    before = state(run)[1:]
    [[token]] = SamplingPipeline(None, run)(logits, history_at([3], STREAMS[:1]))[0].tolist()

    assert (-1 if odd != odd else 7) == token
    assert before == state(run)[1:]


class TestInAGenerator:
    @every
    def test_a_row_is_the_same_alone(self, sampler: Any) -> None:
        """Beside others, alone, and whatever the neighbours' ends."""
        together = generator(sampler)(PROMPTS).ids
        uneven = generator(sampler, stop=MaxNewTokens([3, 20, 11]))(PROMPTS).ids

        assert [row[:n] for row, n in zip(together, [3, 20, 11], strict=True)] == uneven
        for row, prompt in enumerate(PROMPTS):
            assert together[row] == generator(sampler)(prompt, random_streams=[row]).ids[0]

    @every
    def test_each_run_begins_anew(self, sampler: Any) -> None:
        """What one run learnt is not another's, also while both go on."""
        generate = generator(sampler)
        expected = generate(PROMPTS).ids
        turns: list[list[list[int]]] = [[[], [], []], [[], [], []]]
        for first, second in zip(generate.stream(PROMPTS), generate.stream(PROMPTS), strict=True):
            turns[0][first.row] += first.ids
            turns[1][second.row] += second.ids

        assert [expected, expected] == turns

    @every
    def test_runs_behind_a_chain(self, sampler: Any) -> None:
        """What a chain forbids is not chosen."""
        ids = generator(sampler, processors=SuppressTokens(range(0, 40, 2)) | MinP(0.01))(PROMPTS).ids

        assert {1} == {token % 2 for row in ids for token in row}

    @every
    def test_an_emptied_row_ends(self, sampler: Any) -> None:
        """A row without a token ends, and the chain is named."""
        result = generator(sampler, processors=SuppressTokens(range(40)))(PROMPTS)

        assert [[], [], []] == result.ids
        assert ["no_token_left"] * 3 == [finish.reason for finish in result.finishes if finish]
        assert "SuppressTokens" in result.finishes[0].matched  # type: ignore[union-attr]

    def test_seeds_decide(self) -> None:
        """The seed is folded into the streams, as Sample's is."""
        one, same, other = (generator(Mirostat(seed=seed))(PROMPTS).ids for seed in (1, 1, 2))

        assert one == same
        assert one != other

    @every
    def test_is_refused_under_speculation(self, sampler: Any) -> None:
        """By name: the state of rejected draft tokens would have to be undone."""
        name = type(sampler).__name__
        with pytest.raises(ValueError, match=rf"^{name}\(.*\) depends on past logits: it cannot run under"):
            generator(sampler, drafter=PromptLookup())
        with pytest.raises(ValueError, match="it cannot run under speculation"):
            SpeculativeGenerator(ScriptedDecoder(TABLE), PromptLookup(), sampler=sampler)
        with pytest.raises(ValueError, match="it cannot run under speculation"):
            generator(sampler.begin(3), drafter=PromptLookup())


class TestFollowingRun:
    @every
    def test_answers_the_same_at_the_same_position(self, sampler: Any) -> None:
        """Called again, with any logits, a row returns the same token and keeps its state."""
        run: Any = begin_sampler(sampler, 3)
        chosen = run(TABLE[:3, None], history_at([2, 7, 4], STREAMS)).tolist()
        before = state(run)

        assert chosen == run(TABLE[3:6, None], history_at([2, 7, 4], STREAMS)).tolist()
        assert before == state(run)

    @every
    def test_a_row_may_stay_while_others_go_on(self, sampler: Any) -> None:
        """As a row does that has ended."""
        run: Any = begin_sampler(sampler, 3)
        run(TABLE[:3, None], history_at([2, 7, 4], STREAMS))
        before = state(run)
        for step in (1, 2, 3):
            run(TABLE[3 * step :][:3, None], history_at([2 + step, 7, 4 + step], STREAMS))

        assert [5, 7, 7] == run.length.tolist()
        for then, now in zip(before, state(run), strict=True):
            assert then[1] == now[1]
        assert before[-1][0] != state(run)[-1][0]

    @every
    def test_what_was_read_stays(self, sampler: Any) -> None:
        """State tensors that were read are not written to."""
        run: Any = sampler.begin(1)
        run(TABLE[:1, None], history_at([2], STREAMS[:1]))
        seen = [getattr(run, name) for name in ("length", "sampled")]
        before = [tensor.clone() for tensor in seen]
        run(TABLE[1:2, None], history_at([3], STREAMS[:1]))

        assert all(torch.equal(a, b) for a, b in zip(before, seen, strict=True))

    def test_refuses_several_columns(self) -> None:
        """The second column's limit depends on the first column's choice."""
        history = history_at([2, 2, 2], STREAMS)
        wide = type(history)(history.ids, history.length.expand(3, 2), history.prompt, history.random_stream)
        with pytest.raises(ValueError, match="MirostatRun depends on past logits and chooses one column at"):
            Mirostat().begin(3)(TABLE[:6].view(3, 2, 40), wide)

    def test_refuses_another_batch(self) -> None:
        """A run belongs to its rows."""
        with pytest.raises(ValueError, match="AdaptivePRun was begun for 2 rows: got 3"):
            AdaptiveP(0.5).begin(2)(TABLE[:3, None], history_at([2, 2, 2], STREAMS))

    @pytest.mark.parametrize("length", [[3, 5, 2], [3, 2, 1]])
    def test_refuses_to_jump(self, length: list[int]) -> None:
        """What lies between was not seen, and what was seen cannot be unlearnt."""
        run = Mirostat().begin(3)
        run(TABLE[:3, None], history_at([2, 3, 2], STREAMS))
        with pytest.raises(ValueError, match=r"MirostatRun is at \[2, 3, 2\] and must continue"):
            run(TABLE[:3, None], history_at(length, STREAMS))

    def test_others_need_no_beginning(self) -> None:
        """A pure sampler is its own run."""
        greedy = Greedy()

        assert begin_sampler(greedy, 3) is greedy
