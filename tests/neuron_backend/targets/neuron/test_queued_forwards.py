"""Forwards of the native target that are queued before the last sample is read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding import EndOfSequence, Generator, Greedy, History, MaxNewTokens, Sample, Slots
from decodekit.neuron_backend import CompiledDecoder, NativeTarget, compile_decoder
from decodekit.neuron_backend.targets.device_read import DeviceRead
from decodekit.neuron_backend.targets.neuron.native_program import NativeProgram
from decodekit.processors import RepetitionPenalty, Temperature, TopK, TopP

from .dynamo_stand_in import StandIn

Models = Callable[..., PreTrainedModel]

PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30]]
PARTS: dict[str, dict[str, Any]] = {
    "greedy": {"processors": None, "sampler": Greedy()},
    "sampled": {"processors": Temperature(0.9) | TopK(30) | TopP(0.95), "sampler": Sample(seed=3)},
}
STOPS: dict[str, Any] = {
    "count": MaxNewTokens(40),
    "tokens": EndOfSequence(list(range(0, 60, 7))) | MaxNewTokens(40),
    "position": MaxNewTokens(100),
}


def compiled(model: PreTrainedModel, **options: Any) -> CompiledDecoder:
    """Float64, three rows, over two spans."""
    # No device has float64, of which the target warns; here it leaves no doubt about equal texts.
    with pytest.warns(UserWarning, match="no float64"):
        return compile_decoder(
            model,
            batch_size=3,
            max_length=64,
            widths=(1, 5),
            spans=(32, 64),
            dtype=torch.float64,
            target=NativeTarget(backend=StandIn(), device="cpu", strict=False),
            **options,
        )


@pytest.fixture(scope="module", params=PARTS)
def made(request: pytest.FixtureRequest, tiny_model: Models) -> tuple[CompiledDecoder, dict[str, Any]]:
    """A decoder that samples, and its chain and sampler."""
    parts = PARTS[request.param]
    return compiled(tiny_model("llama"), **parts), parts


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The forwards and the reads, in the order of the calls."""
    calls: list[str] = []
    for kind, name in ((NativeProgram, "queue"), (NativeProgram, "__call__"), (DeviceRead, "read")):
        plain = getattr(kind, name)

        def noted(self: Any, *given: Any, plain: Any = plain, name: str = name) -> Any:
            calls.append(name)
            return plain(self, *given)

        monkeypatch.setattr(kind, name, noted)
    return calls


class TestText:
    @pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS.keys())
    def test_is_that_of_plain_decoding(
        self, made: tuple[CompiledDecoder, dict[str, Any]], stop: Any, log: list[str]
    ) -> None:
        """Ragged rows that leave the first span and end apart; forward n + 1 is queued before n is read."""
        decoder, parts = made
        results = []
        for queues in (False, True):
            Slots.of(decoder).forget()
            decoder.async_mode = queues
            results.append(Generator(decoder, stop=stop, **parts)(PROMPTS))
            assert queues == ("queue" in log)

        assert results[0].ids == results[1].ids
        assert results[0].finishes == results[1].finishes
        assert ["queue", "queue", "read", "queue", "read"] == log[log.index("queue") :][:5]

    def test_is_that_of_the_eager_decoder(
        self, made: tuple[CompiledDecoder, dict[str, Any]], tiny_model: Models
    ) -> None:
        """Which has no device."""
        decoder, parts = made
        decoder.async_mode = True
        eager = CompiledDecoder(
            tiny_model("llama"), batch_size=3, max_length=64, widths=(1, 5), dtype=torch.float64
        )

        found, expected = (
            Generator(one, stop=MaxNewTokens(50), **parts)(PROMPTS).ids for one in (decoder, eager)
        )
        assert expected == found

    def test_only_fed_rows_are_written(self, made: tuple[CompiledDecoder, dict[str, Any]]) -> None:
        """Idle rows get padding, whatever was sampled there."""
        decoder, _ = made
        decoder.async_mode = True
        Slots.of(decoder).forget()
        before = [buffer.clone() for buffer in decoder.cache.keys]
        one = torch.ones(3, 1, dtype=torch.int64)
        seen = History(torch.zeros(3, 1, 65, dtype=torch.int64), one, one[:, 0], one[:, 0])
        rows = torch.tensor([True, False, True])
        start = torch.zeros(3, dtype=torch.int64)
        first = decoder.queue_and_sample(3 * one, start, seen, rows)
        second = decoder.queue_and_sample(first, start + 1, seen, rows)

        assert (second.read()[rows] >= 0).all()
        for old, new in zip(before, decoder.cache.keys, strict=True):
            spare = decoder.cache.reserved
            assert torch.equal(old[1][..., spare:, :], new[1][..., spare:, :])
            assert not torch.equal(old[0][..., spare:, :], new[0][..., spare:, :])


class TestAsyncMode:
    def test_is_off_at_first(self, tiny_model: Models) -> None:
        """It has not been measured on a device."""
        assert not CompiledDecoder(tiny_model("llama"), max_length=16, widths=(1,)).async_mode

    @pytest.mark.parametrize(
        ("chain", "reason"),
        [
            ([], "no program of one column samples; pass processors and sampler to compile_decoder"),
            ([RepetitionPenalty(1.2)], "its chain reads the ids of earlier tokens"),
            ([None], "return when the device has finished; NativeTarget's are queued"),
        ],
        ids=["no sampling", "penalty", "eager"],
    )
    def test_is_refused_where_it_cannot_be(self, tiny_model: Models, chain: list[Any], reason: str) -> None:
        """With the reason, and nothing changes; a forward cannot be queued either."""
        decoder = CompiledDecoder(tiny_model("llama"), max_length=16, widths=(1,))
        for processors in chain:
            decoder.fuse(processors, Greedy())

        with pytest.raises(ValueError, match=f"'async_mode' needs .*{reason}"):
            decoder.async_mode = True
        assert not decoder.async_mode
        one = torch.ones(1, 1, dtype=torch.int64)
        with pytest.raises(ValueError, match=reason):
            decoder.queue_and_sample(one, one[0], History(one[None], one, one[0], one[0]), one[0] > 0)

    def test_is_true_or_false(self, made: tuple[CompiledDecoder, dict[str, Any]]) -> None:
        """No number."""
        wrong: Any = 1
        with pytest.raises(TypeError, match="'async_mode' must be True or False: got 1"):
            made[0].async_mode = wrong

    def test_another_decoders_sample_is_refused(self, made: tuple[CompiledDecoder, dict[str, Any]]) -> None:
        """What is fed must be on the device."""
        program: Any = made[0].fused_programs[1]
        wrong: Any = [[1]]

        with pytest.raises(TypeError, match="'ids' must be a tensor or what an earlier queue"):
            program.queue(wrong, torch.ones(3, dtype=torch.bool), torch.zeros(3), torch.arange(33))
