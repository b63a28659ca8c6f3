"""Compiled programs that sample, and saved decoders with them."""

from functools import partial

import pytest
import torch

from decodekit.decoding import Generator, History, Sample, SamplingPipeline
from decodekit.decoding.sampling import noise
from decodekit.neuron_backend import (
    DeviceSampling,
    StaticDecoder,
    load_decoder,
)
from decodekit.neuron_backend.targets.cpu.cpu_target import CpuTarget
from decodekit.processors import (
    MinP,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from decodekit.speculation import PromptLookup

from .sampling import PROMPTS, STOP, WITHOUT, build, texts


@pytest.fixture
def forbidden(monkeypatch):
    """Fail if the host samples although the decoder can."""
    monkeypatch.setattr("decodekit.decoding.engine.run.SamplingPipeline.__call__", None)


CHAIN = RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.9)


@pytest.fixture(scope="module")
def compiled(tiny_model):
    """A decoder of one width, hence two programs."""
    options = {"target": "cpu", "spans": (32, 64), "processors": CHAIN, "sampler": Sample(seed=7)}
    return build(tiny_model("llama"), 2, (3,), scored_width=3, **options)


@pytest.fixture
def saved(compiled, tmp_path):
    compiled.save(tmp_path / "decoder")
    return tmp_path / "decoder"


@pytest.mark.slow
class TestCpu:
    """Programs compiled by AOTInductor."""

    @pytest.mark.parametrize("drafter", [None, PromptLookup(1, 1)])
    def test_says_what_the_host_says(self, compiled, tiny_model, drafter):
        """One row and two, over both spans."""
        for prompts in (PROMPTS[:2], PROMPTS[1:2]):
            run = partial(
                texts,
                prompts=prompts,
                processors=CHAIN,
                sampler=Sample(seed=3),
                drafter=drafter,
                num_draft_tokens=2,
            )

            ids, logprobs = run(compiled)
            expected, close = run(build(tiny_model("llama"), 2, (3,), scored_width=3))

            assert expected == ids
            for row, other in zip(logprobs, close, strict=True):
                assert [t.logprob for t in other] == pytest.approx([t.logprob for t in row], abs=1e-4)

    def test_the_host_does_not_sample(self, compiled, forbidden):
        """All sampling is on the device."""
        assert compiled.explain().on_device
        assert 30 == len(texts_without_logprobs(compiled, CHAIN, Sample(seed=2)))

    def test_another_chain_runs_on_the_host(self, compiled, tiny_model):
        """Through the programs without sampling."""
        chain = CHAIN | MinP(0.1)
        run = partial(texts_without_logprobs, processors=chain, sampler=Sample(seed=3))

        assert run(build(tiny_model("llama"), 2, (3,), scored_width=3)) == run(compiled)


def texts_without_logprobs(decoder, processors, sampler):
    """New ids of one row."""
    return Generator(decoder, processors=processors, sampler=sampler, stop=STOP)([[5, 9, 2]]).ids[0]


@pytest.mark.slow
class TestSaving:
    def test_is_loaded_with_the_same_chain(self, compiled, saved, monkeypatch):
        """A chain of equal parameters is sufficient, and nothing is compiled."""
        monkeypatch.setattr("decodekit.neuron_backend.targets.cpu.aoti.compile_package", None)
        equal = RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.9)

        decoder = load_decoder(saved, processors=equal, sampler=Sample(seed=1))

        assert (3,) == decoder.sampling_widths
        assert not decoder.compiled
        assert decoder.explain().on_device
        run = partial(texts_without_logprobs, processors=CHAIN, sampler=Sample(seed=3))
        assert run(compiled) == run(decoder)

    @pytest.mark.parametrize("processors", [None, CHAIN | MinP(0.1)])
    def test_is_not_loaded_with_another(self, saved, processors):
        """Nor without a chain; the explanation gives the reason, and the programs are kept."""
        decoder = load_decoder(saved, processors=processors, sampler=processors and Sample(seed=0))

        assert () == decoder.sampling_widths
        whys = {place.why for place in decoder.explain().places}
        assert whys == (
            {WITHOUT}
            if processors is None
            else {"the folder holds no programs with this chain and sampler: compile_decoder makes them"}
        )
        decoder.save(saved)
        assert load_decoder(saved, processors=CHAIN, sampler=Sample(seed=0)).explain().on_device

    def test_an_eager_decoder_takes_any(self, tiny_model, tmp_path):
        """It needs no compiled program."""
        build(tiny_model("llama")).save(tmp_path / "eager")

        decoder = load_decoder(tmp_path / "eager", processors=CHAIN, sampler=Sample(seed=0))

        assert (1, 5) == decoder.sampling_widths

    def test_programs_fit_one_chain(self, compiled):
        """The fingerprint covers the chain, whatever the file name."""
        other = StaticDecoder(
            compiled.step.model, batch_size=2, max_length=64, widths=(3,), scored_width=3, spans=(32, 64)
        )
        other.fuse(CHAIN | MinP(0.1), Sample(seed=0))
        names = {
            f"{s.kind}_{w}.zip": f"{t.kind}_{w}.zip"
            for (s, w), (t, _) in zip(compiled.fused_steps(), other.fused_steps(), strict=True)
        }
        renamed = {names.get(name, name): package for name, package in compiled.packages.items()}

        with pytest.raises(ValueError, match="fingerprint must be"):
            CpuTarget().load(other, renamed, trust_programs=True)


def test_rounding_decides_next_to_nothing():
    """20,000 draws in float32 and in float64: at most a few differ."""
    vocab, chain = 61, RepetitionPenalty(1.2) | Temperature(0.8) | TopP(0.95)
    device, host = DeviceSampling(chain, Sample(seed=0)), SamplingPipeline(chain, Sample(seed=0))
    rng, differing = torch.Generator().manual_seed(0), 0
    for batch in range(20):
        ids = torch.randint(0, vocab, (1000, 1, 12), generator=rng)
        length = torch.full((1000, 1), 9)
        window = History(
            ids, length, length[:, 0] - 4, noise.random_streams(torch.arange(1000) + 1000 * batch, 0)
        )
        logits = 3 * torch.randn(1000, 1, vocab, generator=rng)
        differing += int((host(logits, window)[0] != device(*device.inputs(logits, window))).sum())

    assert differing <= 2
