"""Processors in vLLM, represented by a stand-in."""

import importlib.metadata
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.decoding.history import History
from decodekit.processors import (
    Chain,
    ForcedPrefix,
    FrequencyPenalty,
    Grammar,
    MinNewTokens,
    NoRepeatNgram,
    PrefixFunction,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    to_vllm,
)

from ..by_hand import after
from ..constraints.pieces import Pieces
from ..grammar.languages import Brackets
from .vllm_stand_in import Engine, LogitsProcessor, SamplingParams

CHAIN = RepetitionPenalty(1.5) | FrequencyPenalty(0.5) | NoRepeatNgram(2) | MinNewTokens(3, [1])


def engine(chain: Any = CHAIN) -> Engine:
    """An engine with that chain."""
    return Engine(to_vllm(chain, base=LogitsProcessor))


def random_logits(rows: int) -> Tensor:
    """Logits of some rows."""
    return 3 * torch.randn(rows, 12, generator=torch.Generator().manual_seed(rows))


class TestToVllm:
    def test_gives_each_row_its_own_prefix(self) -> None:
        """Two requests, one of them with drafted tokens: every row is what it is alone."""
        run = engine()
        run.add(2, [3, 4], [3], SamplingParams())
        run.add(0, [5, 5, 6], [8, 5, 5, 8], SamplingParams())
        logits = random_logits(5)
        before = logits.clone()

        processed = run.step({2: [4, 3, 9], 0: []}, logits)

        texts = [([3, 4, 3], 2), ([3, 4, 3, 4], 2), ([3, 4, 3, 4, 3], 2), ([3, 4, 3, 4, 3, 9], 2)]
        texts.append(([5, 5, 6, 8, 5, 5, 8], 3))
        for row, (ids, prompt) in enumerate(texts):
            expected = CHAIN(logits[row][None, None], after(ids, prompt))
            assert torch.equal(expected[0, 0], processed[row])
        assert torch.equal(before, logits)

    def test_a_request_may_switch_it_off(self) -> None:
        """Its rows stay bit by bit what they were."""
        run = engine(Temperature(0.5))

        assert run.add(0, [3], [], SamplingParams(extra_args={"decodekit": True, "other": 1}))
        assert not run.add(1, [3], [], SamplingParams(extra_args={"decodekit": False}))
        logits = random_logits(2)
        processed = run.step({0: [], 1: []}, logits)

        assert torch.equal(2 * logits[0], processed[0])
        assert torch.equal(logits[1], processed[1])
        assert logits is run.step({1: []}, logits)

    def test_a_slot_forgets_its_last_request(self) -> None:
        """Switch and stream are those of the request that has the slot."""
        run, seen = engine(_Streams(random_streams := [])), random_streams
        run.add(0, [3], [], SamplingParams(seed=5, extra_args={"decodekit": 0}))
        run.add(0, [3], [], SamplingParams(seed=5))
        run.add(1, [3], [], SamplingParams(seed=5))
        run.add(2, [3], [], SamplingParams(seed=0))
        run.add(3, [3], [], SamplingParams())
        run.step({0: [], 1: [], 2: [], 3: []}, random_logits(4))
        run.add(1, [3], [], SamplingParams())
        run.step({1: []}, random_logits(1))

        (first, second, third, fourth), (fifth,) = seen
        assert first == second
        assert 4 == len({second, third, fourth, fifth})

    def test_what_is_forbidden_stays_forbidden(self) -> None:
        """A chain that lifts tokens does not undo a grammar."""
        run = engine(lambda logits, history: torch.zeros_like(logits))
        run.add(0, [3], [], SamplingParams())
        logits = random_logits(1)
        logits[0, 4:] = -torch.inf

        processed = run.step({0: []}, logits)

        assert [0.0] * 4 + [-torch.inf] * 8 == processed[0].tolist()

    @pytest.mark.parametrize("switch", ["yes", 2, None, 0.0])
    def test_refuses_a_switch_that_is_none(self, switch: object) -> None:
        """Before the request is admitted."""
        with pytest.raises(ValueError, match="'decodekit' must be True or False: got "):
            engine().add(0, [3], [], SamplingParams(extra_args={"decodekit": switch}))

    @pytest.mark.parametrize(
        "chain",
        [
            Temperature([0.5, 2.0]),
            Chain((CHAIN, Temperature(0.5), RepetitionPenalty([2.0]))),
            Grammar([Brackets(2), None]),
            CHAIN | Grammar([Brackets(2)]),
            ForcedPrefix(["a", "b"], Pieces(["a", "b"])),
        ],
    )
    def test_refuses_parameters_one_per_row(self, chain: Any) -> None:
        """Rows are other requests in every step."""
        with pytest.raises(ValueError, match="must be one for all requests: got "):
            to_vllm(chain, base=LogitsProcessor)

    @pytest.mark.parametrize(
        "chain", [PrefixFunction(lambda row, ids: [row]), CHAIN | PrefixFunction(lambda row, ids: [row])]
    )
    def test_refuses_what_is_told_the_number_of_the_row(self, chain: Any) -> None:
        """It is another request's in the next step."""
        with pytest.raises(
            ValueError, match=r"'chain' must not depend on the numbers of rows.*: got PrefixF"
        ):
            to_vllm(chain, base=LogitsProcessor)

    @pytest.mark.parametrize("chain", [SuppressTokens([3, 4]), Grammar(Brackets(2)), Grammar(None)])
    def test_takes_what_is_the_same_for_every_row(self, chain: Any) -> None:
        """Several token ids, or one grammar, are no rows."""
        made: Any = to_vllm(chain, base=LogitsProcessor)

        assert made.chain is chain

    def test_makes_a_class_of_that_name(self) -> None:
        """Derived from vLLM's, with the chain to look at."""
        made: Any = to_vllm(CHAIN, name="Mine", base=LogitsProcessor)

        assert "Mine" == made.__name__
        assert issubclass(made, LogitsProcessor)
        assert made.chain is CHAIN

    def test_says_what_to_install(self) -> None:
        """Without vLLM."""
        with pytest.raises(ImportError, match=r"pip install 'vllm>=0\.33'"):
            to_vllm(CHAIN)

    def test_is_no_entry_point(self) -> None:
        """VLLM would load an entry point of its group in every process."""
        groups = {point.group for point in importlib.metadata.distribution("decodekit").entry_points}

        assert "vllm.logits_processors" not in groups


class _Streams:
    """Records the random streams it is called with."""

    def __init__(self, seen: list[list[int]]) -> None:
        self.seen = seen

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        self.seen.append(history.random_stream.tolist())
        return logits
