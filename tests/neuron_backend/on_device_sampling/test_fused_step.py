"""A forward and sampling as one module."""

import pytest
import torch

from decodekit.decoding import Greedy, History, Sample, SamplingPipeline
from decodekit.decoding.sampling import noise
from decodekit.neuron_backend import StaticDecoder, lint_graph
from decodekit.neuron_backend.kv_cache.writes import write_copy
from decodekit.neuron_backend.lowering.step_graphs import lower_step
from decodekit.neuron_backend.on_device_sampling.device_sampling import DeviceSampling
from decodekit.neuron_backend.on_device_sampling.fused_step import FusedStep
from decodekit.processors import (
    Composable,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    MinP,
    NoRepeatNgram,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)

SAMPLING = Temperature(0.7) | TopK(20) | TopP(0.9) | MinP(0.02)


def fused(decoder, processors, sampler):
    """The step of *decoder* with fused sampling."""
    return FusedStep(decoder.step, DeviceSampling(processors, sampler), decoder.shape, "fused_x")


def history(shape, columns):
    """Two rows of random tokens."""
    rng = torch.Generator().manual_seed(columns)
    ids = torch.randint(0, shape.vocab_size, (shape.batch_size, 1, shape.max_length + 1), generator=rng)
    length = torch.tensor([[3], [9]]) + torch.arange(columns)
    return History(ids, length, torch.tensor([2, 4]), noise.random_streams(torch.arange(2), 5))


class TestGiven:
    @pytest.mark.parametrize(
        ("processors", "reads"),
        [
            pytest.param(None, (), id="no-chain"),
            pytest.param(SAMPLING | LogitBias({1: 2.0}), (), id="logits-alone"),
            pytest.param(MinNewTokens(3, 1), ("length", "prompt"), id="how-many"),
            pytest.param(RepetitionPenalty(1.2), ("ids", "length"), id="which"),
            pytest.param(FrequencyPenalty(0.2), ("ids", "length", "prompt"), id="which-of-the-new"),
            pytest.param(NoRepeatNgram(3) | MinNewTokens(3, 1), ("ids", "length", "prompt"), id="both"),
        ],
    )
    def test_is_what_the_chain_reads(self, llama, processors, reads):
        """No program has an unused input."""
        assert reads == fused(llama, processors, Greedy()).reads

    def test_ids_have_one_size(self, llama):
        """Whatever the history's capacity: a draft has the target's history."""
        step = fused(llama, RepetitionPenalty(1.2), Greedy())
        window = history(llama.shape, 1)
        short = History(window.ids[..., :20], window.length, window.prompt, window.random_stream)
        long = History(
            torch.nn.functional.pad(window.ids, (0, 9), value=1),
            window.length,
            window.prompt,
            window.random_stream,
        )

        assert torch.equal(window.ids, step.sampling_inputs(long)[0])
        assert (2, 1, 65) == step.sampling_inputs(short)[0].shape
        assert torch.equal(window.ids[..., :20], step.sampling_inputs(short)[0][..., :20])

    def test_noise_is_single_precision(self, llama):
        """From random streams and lengths."""
        window = history(llama.shape, 3)
        blocks, places = fused(llama, None, Sample(seed=0)).sampling_inputs(window)

        assert (torch.float32, (2, 3, 8)) == (blocks.dtype, tuple(blocks.shape))
        assert torch.equal(places, Sample(seed=0).noise(window, 61)[1].float())

    def test_a_stage_that_draws_is_refused(self, llama):
        """Random streams are not available on the device."""

        class Draws(Composable):
            device_safe = True

            def __call__(self, logits, history):
                return logits + history.random_stream[:, None, None]

        with pytest.raises(ValueError, match="must not draw"):
            fused(llama, Draws(), Greedy())

    @pytest.mark.parametrize("processors", [TopK([1, 2, 3]), LogitBias({61: 1.0})])
    def test_what_does_not_fit_is_refused(self, llama, processors):
        """Per-row parameters for other rows, a token outside the vocabulary."""
        with pytest.raises(ValueError, match=r"must have one value per row|token ids must be"):
            fused(llama, processors, Greedy())


class TestForward:
    @pytest.mark.parametrize("width", [1, 5, 16])
    @pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=5)])
    def test_samples_from_its_logits(self, tiny_model, width, sampler):
        """The logits are the step's; a wide forward samples only the column that it scores."""
        decoder = StaticDecoder(
            tiny_model("llama"), batch_size=2, max_length=64, scored_width=5, widths=(1, 5, 16)
        )
        chain = RepetitionPenalty(1.5) | SAMPLING
        step = fused(decoder, chain, sampler)
        window = history(decoder.shape, step.scored(width))
        ids, start = window.ids[:, 0, :width].contiguous(), torch.tensor([2, 7])
        slots, cache = decoder.cache.addresses(64), decoder.cache.tensors
        with torch.no_grad():
            expected = decoder.step(ids, start, slots, *cache).clone()
            sampled, logits = step(ids, start, *step.sampling_inputs(window), slots, *cache)
            # A device may have int32 only.
            given = [t.int() if t.dtype == torch.int64 else t for t in step.sampling_inputs(window)]
            again, same, written = step.score(ids, start, given, slots, cache, write_copy)

        assert torch.equal(expected, logits)
        assert torch.equal(SamplingPipeline(chain, sampler)(logits, window)[0], sampled)
        assert torch.equal(sampled, again)
        assert torch.equal(logits, same)
        assert all(torch.equal(old, new) for old, new in zip(cache, written, strict=True))

    @pytest.mark.mostly_slow(every=2)
    @pytest.mark.parametrize("width", [1, 5])
    def test_a_device_takes_it(self, tiny_model, width):
        """The lint finds nothing in forward, penalties, filters and sampling."""
        decoder = StaticDecoder(tiny_model("llama"), batch_size=2, max_length=16, widths=(1, 5))
        chain = RepetitionPenalty(1.5) | NoRepeatNgram(3) | FrequencyPenalty(0.1) | SAMPLING
        step = fused(decoder, chain, Sample(seed=0))

        findings = lint_graph(lower_step(step, width, decoder.cache, 16))

        assert [] == [str(finding) for finding in findings]

    def test_lint_would_find_a_sort(self, tiny_model):
        """Control: the host's own top-p after the step."""
        decoder = StaticDecoder(tiny_model("llama"), batch_size=2, max_length=16, widths=(1,))
        step = fused(decoder, SAMPLING, Greedy())
        step.sampling.stages.append(TopP(0.5))

        findings = lint_graph(lower_step(step, 1, decoder.cache, 16))

        assert "sort" in {finding.rule for finding in findings}
