"""Composition of processors."""

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from transformers.generation.logits_process import TopKLogitsWarper

from decodekit.decoding import Generator
from decodekit.decoding.history import History
from decodekit.decoding.protocols import Finish, Processor
from decodekit.processors import (
    Chain,
    Composable,
    Grammar,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
    from_transformers,
)
from decodekit.testing import ScriptedDecoder

from ..strategies import examples, windows
from .by_hand import NOTHING, run
from .grammar.languages import Brackets


def double(logits: Tensor, history: History) -> Tensor:
    """A plain function as a processor."""
    return 2 * logits


class Stop:
    """A minimal stop condition."""

    finishes = (Finish("stop"),)

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        """Go on."""
        return torch.zeros(scores.shape[:2])


class TestChain:
    @settings(deadline=None, max_examples=examples(60))
    @given(windows())
    def test_equals_its_parts_by_hand(self, window: tuple[Tensor, History]) -> None:
        """Left to right, each on the result of the one before."""
        logits, history = window
        a, b, c = RepetitionPenalty(1.3), Temperature(0.7), TopP(0.8)

        expected = c(b(a(logits, history), history), history)

        assert torch.equal(expected, (a | b | c)(logits, history))

    def test_the_order_is_the_callers(self) -> None:
        """A nucleus of the flattened distribution is larger than one of the model's own."""
        # Probabilities at T = 1: .64 .24 .09 .03; at T = 2: .46 .28 .17 .10.
        row = [3.0, 2.0, 1.0, 0.0]

        assert 4 == sum(logit > -torch.inf for logit in run(Temperature(2.0) | TopP(0.9), row))
        assert 3 == sum(logit > -torch.inf for logit in run(TopP(0.9) | Temperature(2.0), row))

    def test_empty_is_the_identity(self) -> None:
        """The same object comes out, and every declaration holds."""
        logits = torch.zeros(1, 1, 3)
        chain = Chain()

        assert chain(logits, NOTHING) is logits
        assert chain.keeps_argmax
        assert chain.local
        assert chain.shift_invariant
        assert chain.device_safe
        assert chain.row_independent

    def test_takes_chains_apart(self) -> None:
        """Nested chains are flattened."""
        a, b, c = TopK(3), Temperature(2.0), TopP(0.5)

        for chain in (
            a | b | c,
            a | (b | c),
            Chain([Chain([a]), Chain(), Chain([b | c])]),
            Chain() | (a | b) | c,
        ):
            assert (a, b, c) == chain.processors

    def test_takes_any_callable_on_either_side(self) -> None:
        """A function composes with a processor."""
        assert [4.0, -torch.inf] == run(TopK(1) | double, [2.0, 1.0])
        assert [4.0, -torch.inf] == run(double | TopK(1), [2.0, 1.0])
        assert [8.0, -torch.inf] == run(double | (TopK(1) | double), [2.0, 1.0])

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            pytest.param(Stop(), "a stop condition", id="stop-condition"),
            pytest.param(0.5, "got 0.5, a float", id="number"),
            pytest.param(None, "got None, a NoneType", id="None"),
            pytest.param(TopP, "got the class TopP, not an instance", id="class"),
        ],
    )
    def test_refuses_what_is_no_processor(self, other: Any, message: str) -> None:
        """A stop condition, a number or a class raises with its reason."""
        for compose in (lambda: TopK(5) | other, lambda: other | TopK(5), lambda: Chain([other])):
            with pytest.raises(TypeError, match=f"a chain takes processors.*{message}"):
                compose()

    def test_refuses_processors_of_transformers(self) -> None:
        """They take other arguments; the message names ``from_transformers``."""
        theirs: Any = TopKLogitsWarper(5)
        decoder = ScriptedDecoder(torch.zeros(1, 3))
        for compose in (lambda: TopK(5) | theirs, lambda: Generator(decoder, processors=theirs)):
            with pytest.raises(TypeError, match="from_transformers: got a TopKLogitsWarper"):
                compose()

    def test_prints_its_order(self) -> None:
        """The representation shows the order."""
        assert "Chain(processors=(Temperature(temperature=0.8), SuppressTokens(ids=(3,))))" == repr(
            Temperature(0.8) | SuppressTokens(3)
        )

    @pytest.mark.parametrize(
        ("chain", "declared"),
        [
            (Temperature(0.5) | TopK(3), (True, True, True, False)),
            (RepetitionPenalty(1.2) | TopK(3), (False, False, False, False)),
            (NoRepeatNgram(2) | TopK(3), (False, True, False, False)),
            (SuppressTokens([1]) | Temperature(2.0), (False, True, False, True)),
            (Temperature(0.5) | double, (False, False, False, False)),
        ],
    )
    def test_declares_what_all_parts_declare(self, chain: Chain, declared: tuple[bool, ...]) -> None:
        """An unknown callable declares nothing."""
        assert declared == (chain.keeps_argmax, chain.shift_invariant, chain.local, chain.device_safe)

    def test_traces_into_one_graph(self) -> None:
        """torch.compile takes a whole chain, functions included."""
        torch.compiler.reset()
        chain: Processor = RepetitionPenalty(1.2) | Temperature([0.5, 1.0]) | TopK(3) | double
        logits, history = (
            torch.randn(2, 2, 6),
            History(
                torch.randint(0, 6, (2, 1, 5)),
                torch.tensor([[3, 4], [1, 2]]),
                torch.ones(2).long(),
                torch.arange(2),
            ),
        )

        compiled = torch.compile(chain, fullgraph=True, backend="eager")

        assert torch.equal(chain(logits, history), compiled(logits, history))
        torch.compiler.reset()


@attrs.frozen(eq=False)
class Holding(Composable):
    """A processor of a user's, with any parameter."""

    parameter: object

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Change nothing."""
        return logits


class Undeclared(Composable):
    """One that is no attrs class."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Change nothing."""
        return logits


class TestRowIndependent:
    @pytest.mark.parametrize(
        ("parameter", "expected"),
        [
            *((0.5, True), (None, True), ("keep", True), ((1, (2, 3)), True), ({1: -1.0}, True)),
            *((torch.tensor([0.5]), False), (abs, False), ((1, abs), False), (Brackets(1), False)),
        ],
    )
    def test_is_read_from_the_parameters(self, parameter: object, expected: bool) -> None:
        """What is no number or string may tell rows apart."""
        assert expected is Holding(parameter).row_independent

    def test_holds_for_a_chain_of_such_parts(self) -> None:
        """A function, and a class whose parameters are unknown, declare nothing."""
        assert (TopK(3) | Temperature(0.5)).row_independent
        assert not (TopK([3]) | Temperature(0.5)).row_independent
        assert not (TopK(3) | double).row_independent
        assert not (TopK(3) | Undeclared()).row_independent

    def test_a_grammar_holds_unless_rows_have_their_own(self) -> None:
        """Its matchers are a cache."""
        assert Grammar(Brackets(1)).row_independent
        assert Grammar(None).row_independent
        assert not Grammar([Brackets(1)]).row_independent

    def test_a_processor_of_transformers_is_called_row_by_row(self) -> None:
        """With a column's prefix and scores alone."""
        assert from_transformers(TopKLogitsWarper(3)).row_independent
