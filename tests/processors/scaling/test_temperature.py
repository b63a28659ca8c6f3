"""Temperature."""

from typing import Any

import pytest
import torch
from transformers import TemperatureLogitsWarper

from decodekit.decoding import ExactMatch, Generator, Greedy, MaxNewTokens, Sample
from decodekit.decoding.history import History
from decodekit.neuron_backend.on_device_sampling.device_sampling import DeviceSampling
from decodekit.processors import XTC, DynamicTemperature, MinP, Temperature, TopK, TopNSigma, TopP, Typical
from decodekit.speculation import (
    BlockVerification,
    DraftModel,
    RejectionSampling,
    SpeculativeGenerator,
)
from decodekit.testing import ScriptedDecoder

from ..by_hand import after, run


class TestTemperature:
    def test_divides_the_logits(self) -> None:
        """At 0.5 differences double, at 2 they halve."""
        assert [4.0, -2.0, 0.0] == run(Temperature(0.5), [2.0, -1.0, 0.0])
        assert [1.0, -0.5, 0.0] == run(Temperature(2), [2.0, -1.0, 0.0])

    @pytest.mark.parametrize("temperature", [0, 0.0, [1.0, 0.0]])
    def test_zero_names_greedy(self, temperature: float | list[float]) -> None:
        """The message for temperature 0 names ``Greedy()``."""
        with pytest.raises(ValueError, match=r"'temperature' must be > 0 .*Greedy\(\).*: got .*0"):
            Temperature(temperature)

    @pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf"), 1e39])
    def test_refuses_what_float32_cannot_divide_by(self, temperature: float) -> None:
        """What is infinite among float32 logits would make 0 or NaN of them."""
        with pytest.raises(ValueError, match="'temperature' must be"):
            Temperature(temperature)

    @pytest.mark.parametrize("temperature", [1e-7, 1e-15, 1e-20])
    def test_small_ones_divide_as_transformers_does(self, temperature: float) -> None:
        """Bit for bit where its result is finite."""
        logits = 100 * torch.randn(1, 1, 500, generator=torch.Generator().manual_seed(3))

        expected = TemperatureLogitsWarper(temperature)(torch.zeros(1, 0), logits[0])

        assert expected.isfinite().all()
        assert torch.equal(expected, Temperature(temperature)(logits, after([]))[0])

    def test_prints_as_it_was_written(self) -> None:
        """The representation is the call."""
        assert "Temperature(temperature=0.8)" == repr(Temperature(0.8))


TINY = [1e-10, 2e-38, 1e-40, 1e-300]
TABLE = 100 * torch.randn(300, 300, generator=torch.Generator().manual_seed(5))
"""Logits that a division by less than about 1e-36 makes infinite."""

STOP = MaxNewTokens(12)


def tiny_chains(temperature: Any) -> list[Any]:
    """Chains in which a tiny *temperature* runs on its own, before a truncation, and after it."""
    one = Temperature(temperature)
    filters = [TopK(20), TopP(0.9), MinP(0.1), TopNSigma(1.0), Typical(0.9), XTC(0.5, 0.1)]
    return [
        one,
        DynamicTemperature(temperature, temperature),
        DynamicTemperature(1.0, temperature) | one,
        *(one | stage for stage in filters),
        *(stage | one for stage in filters[:-1]),
    ]


@pytest.mark.parametrize("temperature", TINY)
class TestTiny:
    def test_is_greedy_in_generation(self, temperature: float) -> None:
        """As the limit is, with one temperature or one per row."""
        decoder = ScriptedDecoder(TABLE, batch_size=2)
        prompts = [[1, 2], [3]]
        greedy = Generator(decoder, stop=STOP)(prompts).ids

        for value in (temperature, [temperature, temperature]):
            for chain in tiny_chains(value):
                for sampler in (Sample(seed=7), Greedy()):
                    generator = Generator(decoder, processors=chain, sampler=sampler, stop=STOP)

                    assert greedy == generator(prompts).ids, (chain, sampler)

    def test_is_greedy_in_verification(self, temperature: float) -> None:
        """With a draft that agrees at some positions, and the distributions of both compared."""
        other = TABLE + 30 * torch.randn(300, 300, generator=torch.Generator().manual_seed(6))
        greedy = Generator(ScriptedDecoder(TABLE), stop=STOP)([1, 2]).ids

        for chain in tiny_chains(temperature):
            drafter = DraftModel(ScriptedDecoder(other))
            parts: dict[str, Any] = {"processors": chain, "sampler": Sample(seed=7), "stop": STOP}
            for verification in (ExactMatch(), RejectionSampling(), BlockVerification()):
                generator = SpeculativeGenerator(
                    ScriptedDecoder(TABLE), drafter, num_draft_tokens=4, verification=verification, **parts
                )

                assert greedy == generator([1, 2]).ids, (chain, verification)

    def test_is_greedy_on_the_device(self, temperature: float) -> None:
        """One temperature, or one per row."""
        logits, greedy = TABLE[None, :20].expand(2, 20, 300), TABLE[:20].argmax(dim=-1)
        ids = torch.zeros(2, 1, 30, dtype=torch.int64)
        length = torch.arange(1, 21).expand(2, 20)
        history = History(ids, length, torch.ones(2, dtype=torch.int64), torch.tensor([3, 4]))

        for value in (temperature, [temperature, temperature]):
            one = Temperature(value)
            for chain in (one, one | TopK(20), TopK(20) | one, one | TopK(20) | TopP(0.9)):
                sampling = DeviceSampling(chain, Sample(seed=7))

                assert torch.equal(greedy.expand(2, 20), sampling(*sampling.inputs(logits, history))), chain

    def test_leaves_no_infinity_nor_nan(self, temperature: float) -> None:
        """What was removed stays removed, and all else is finite."""
        logits = TABLE[None, :2].masked_fill(TABLE[None, :2] < -100, -torch.inf)

        for one in (
            Temperature(temperature),
            DynamicTemperature(temperature, 1.0),
            DynamicTemperature(1.0, temperature),
        ):
            processed = one(logits, after([0, 1]))

            assert torch.equal(logits == -torch.inf, ~processed.isfinite())
