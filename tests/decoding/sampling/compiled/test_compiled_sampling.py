"""What the compiled routine reads and writes."""

from collections.abc import Sequence

import attrs
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from decodekit.decoding import History, Sample, SamplingPipeline
from decodekit.decoding.sampling import noise
from decodekit.decoding.sampling.compiled.compiled_sampling import CompiledSampling
from decodekit.decoding.sampling.compiled.operation import Kind, Operation
from decodekit.processors import Chain, RepetitionPenalty, Temperature, TopK, TopP

from ....strategies import examples

VOCAB = 1500
CHAIN: Chain = RepetitionPenalty(1.3) | Temperature(0.7) | TopK(9) | TopP(0.9)


def compiled(chain: Chain = CHAIN) -> CompiledSampling:
    """The compiled path of *chain*."""
    found = SamplingPipeline(chain, Sample(seed=0)).fast
    assert isinstance(found, CompiledSampling)
    return found


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[Tensor, History]:
    """Logits and a history of one path or several, at any strides, with odd ids in it."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    batch, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    logits = 4 * torch.randn(2 * batch, width + 1, VOCAB + 3, generator=rng)
    ids = torch.randint(-2, VOCAB + 5, (batch, width, 20), generator=rng)
    if draw(st.booleans()):
        ids = ids[:, :1]
    if draw(st.booleans()):
        logits, ids = logits.transpose(0, 1).contiguous().transpose(0, 1), ids.clone()[..., 1:]
    if draw(st.booleans()):
        # The last dimension is not contiguous: the routine cannot read it.
        logits = logits.mT.contiguous().mT
    length = torch.randint(3, 15, (width, batch), generator=rng).T
    prompt = torch.randint(1, 6, (2 * batch,), generator=rng)[::2]
    streams = noise.random_streams(torch.arange(2 * batch), 3)[::2]
    return logits[::2, :width, :VOCAB], History(ids, length, prompt, streams)


@settings(deadline=None, max_examples=examples(200))
@given(laid_out(), st.data())
def test_layout_and_rows_make_no_difference(given_: tuple[Tensor, History], data: st.DataObject) -> None:
    """Tokens and scores of any rows, at any strides, are those of the path in Python."""
    logits, history = given_
    every = list(range(len(logits)))
    rows: Sequence[int] | None = data.draw(st.none() | st.lists(st.sampled_from(every), unique=True))
    routine = compiled()
    found, expected = routine(logits, history, rows), routine.otherwise(logits, history, rows)

    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert torch.equal(expected[0], found[0])
        if rows is None:
            assert torch.equal(expected[1].logits, found[1].logits)


def test_it_is_the_routine_that_answers() -> None:
    """Without the path in Python."""
    rng = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, 2, VOCAB, generator=rng)
    history = History(
        torch.zeros(3, 1, 9).long(),
        torch.full((3, 2), 5),
        torch.ones(3).long(),
        noise.random_streams(torch.arange(3), 0),
    )

    def refuse(*arguments: object) -> None:
        raise AssertionError(arguments)

    routine = attrs.evolve(compiled(), otherwise=refuse)  # type: ignore[arg-type]
    found = routine(logits, history)
    assert found is not None
    assert torch.equal(SamplingPipeline(CHAIN, Sample(seed=0)).run_stages(logits, history)[0], found[0])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 2e15])
@pytest.mark.parametrize("place", [0, 700, VOCAB - 1])
def test_what_cannot_be_computed_with_is_not_sampled_from(bad: float, place: int) -> None:
    """Wherever it stands."""
    logits = torch.randn(1, 1, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[..., place] = bad
    history = History(torch.zeros(1, 1, 9).long(), *(torch.full((1, 1), 5), *2 * (torch.ones(1).long(),)))
    routine = attrs.evolve(compiled(), otherwise=lambda *call: None)  # type: ignore[arg-type]

    assert routine(logits, history) is None


def test_a_stage_it_does_not_know_is_not_compiled() -> None:
    """A short cut without an operation, or a sampler's own draw."""
    python = compiled().otherwise

    class Short:
        takes_few = True

    assert CompiledSampling.of(attrs.evolve(python, after=(Short(),))) is None
    assert CompiledSampling.of(attrs.evolve(python, draw=lambda few, cell: 0)) is None


def test_an_oracle_is_not_gone_around() -> None:
    """Where outcomes are enumerated, no number is drawn."""

    class Answers:
        def coin(self, key: tuple[int, ...], probability: float) -> bool:
            return True

        def draw(self, key: tuple[int, ...], weights: Sequence[float]) -> int:
            return 0

        def folded(self, stream: int, result: int) -> None:
            pass

    logits = torch.randn(1, 1, VOCAB)
    history = History(torch.zeros(1, 1, 9).long(), *(torch.full((1, 1), 5), *2 * (torch.ones(1).long(),)))
    with noise.answered_by(Answers()), pytest.raises(RuntimeError, match="cannot be enumerated"):
        compiled()(logits, history)


def test_operations_say_what_the_parts_do() -> None:
    """Their numbers are the parameters."""
    cuts = compiled(
        RepetitionPenalty(1.3, include_prompt=False, window=4) | TopK(9) | TopP(0.9, min_tokens=2)
    )
    known = [
        cut.operation() for cut in (*cuts.otherwise.before, cuts.otherwise.narrows, *cuts.otherwise.after)
    ]  # type: ignore[attr-defined]

    assert [
        Operation(Kind.PENALISE_OCCURRING, 1.3, 4, include_prompt=False),
        Operation(Kind.KEEP_LARGEST, count=9),
        Operation(Kind.KEEP_MASS, 0.9, 2),
    ] == known
