"""Traced decoders whose programs sample."""

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from decodekit.decoding import Generator, Greedy, Logprobs, MaxNewTokens, Sample
from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.file_digest import file_sha256
from decodekit.decoding.history import History
from decodekit.neuron_backend import CompiledDecoder, load_decoder
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.neuron_backend.lint.hlo_lint import lint_hlo
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget
from decodekit.neuron_backend.targets.target import NOT_SAVED
from decodekit.processors import MinP, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator

from .conftest import Built, build

pytestmark = pytest.mark.stand_in

# Of different lengths, and with the text long enough to leave the shorter span.
PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 5, 9, 2], [60, 1, 30]]
STOP = MaxNewTokens(45)
CHAIN = RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.95) | MinP(0.02)
CHOSEN: dict[str, Any] = {"processors": CHAIN, "sampler": Sample(seed=7)}

# A model of its own, since XLA caches other decoders' programs.
LENGTH: dict[str, Any] = {"max_length": 62, "spans": (12, 62)}

PROGRAMS = {"nxd": 9, "trace": 1}
"""Two widths by two spans, one with sampling, and the widest with the longer span; or one program."""


@pytest.fixture(scope="module", params=["nxd", "trace"])
def sampling(
    request: pytest.FixtureRequest,
    tiny_model: Callable[..., PreTrainedModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> Built:
    """One decoder for each way of tracing, with the chain; its HLO is in the compiler's folder."""
    workdir = str(tmp_path_factory.mktemp("compiler"))
    target = TracedTarget(way=request.param, compiler_workdir=workdir)
    return build(tiny_model("llama"), target, **LENGTH, **CHOSEN)


class TestTexts:
    """Token for token what the host samples from an eager decoder's logits."""

    def test_plain(self, sampling, eager, sampled_widths):
        """Over both spans; the program of one column samples every token but each row's first."""
        expected = Generator(eager, stop=STOP, **CHOSEN)(PROMPTS).ids

        assert expected == Generator(sampling.decoder, stop=STOP, **CHOSEN)(PROMPTS).ids
        assert {1} == set(sampled_widths)
        assert len(sampled_widths) >= 44

    def test_with_prompt_lookup(self, sampling, eager, sampled_widths):
        """Verifications of several columns, mostly rewound, sampled by the wider program."""
        expected = Generator(eager, stop=STOP, **CHOSEN)(PROMPTS).ids

        found = SpeculativeGenerator(
            sampling.decoder, PromptLookup(), num_draft_tokens=4, stop=STOP, **CHOSEN
        )

        assert expected == found(PROMPTS).ids
        assert 5 in sampled_widths

    def test_with_a_draft_model_that_samples(self, sampling, eager):
        """A second traced decoder with the chain."""
        draft = sampling.decoder.early_exit(1, widths=(1, 16), **CHOSEN)
        expected = Generator(eager, stop=STOP, **CHOSEN)(PROMPTS).ids

        fast = SpeculativeGenerator(
            sampling.decoder, DraftModel(draft), num_draft_tokens=4, stop=STOP, **CHOSEN
        )
        found = fast(PROMPTS)

        assert (1,) == draft.sampling_widths
        assert expected == found.ids
        assert 0 < sum(found.statistics.accepted) < sum(found.statistics.drafted)

    def test_with_another_seed(self, sampling, eager, sampled_widths):
        """Noise is an input: one program serves every seed."""
        other = {"processors": CHAIN, "sampler": Sample(seed=8)}
        expected = Generator(eager, stop=STOP, **other)(PROMPTS).ids

        assert expected == Generator(sampling.decoder, stop=STOP, **other)(PROMPTS).ids
        assert sampled_widths

    def test_of_another_chain(self, sampling, eager, sampled_widths):
        """The host samples from plain forwards, and explain() says so."""
        generator = Generator(sampling.decoder, stop=STOP)

        assert Generator(eager, stop=STOP)(PROMPTS).ids == generator(PROMPTS).ids
        assert [] == sampled_widths
        assert "another chain or sampler" in str(generator.explain())

    def test_with_their_scores(self, sampling, eager):
        """The logits of a forward that sampled can be read."""
        expected, found = (
            Generator(decoder, stop=STOP, **CHOSEN)(PROMPTS, logprobs=Logprobs(stage="processed"))
            for decoder in (eager, sampling.decoder)
        )

        assert expected.ids == found.ids
        for one, other in zip(expected.logprobs, found.logprobs, strict=True):
            assert [entry.logprob for entry in one] == pytest.approx(
                [entry.logprob for entry in other], abs=1e-4
            )


def test_explain_names_the_device(sampling):
    """For every part."""
    placement = Generator(sampling.decoder, stop=STOP, **CHOSEN).explain()

    assert placement.on_device
    assert 6 == len(placement.places)
    assert (1, 5) == sampling.decoder.sampling_widths


@pytest.mark.parametrize("way", ["nxd", "trace"])
def test_greedy_sampling_of_raw_logits_needs_no_further_program(way, tiny_model, eager, tmp_path):
    """NxD cannot route between programs of equal inputs: one returns both tokens and logits."""
    target = TracedTarget(way=way)
    # A length of its own, since XLA caches other decoders' programs.
    shape: dict[str, Any] = {"max_length": 63, "widths": (1, 16), "scored_width": 1, "spans": (63,)}
    built = build(tiny_model("llama"), target, **shape, sampler=Greedy())

    generator = Generator(built.decoder, stop=STOP, sampler=Greedy())

    assert (2 if way == "nxd" else 1) == built.executables
    assert generator.explain().on_device
    assert Generator(eager, stop=STOP)(PROMPTS).ids == generator(PROMPTS).ids
    built.decoder.save(tmp_path / "decoder")
    plain = load_decoder(tmp_path / "decoder")
    assert Generator(eager, stop=STOP)(PROMPTS).ids == Generator(plain, stop=STOP)(PROMPTS).ids


class TestPrograms:
    """Programs that XLA compiled."""

    def test_are_one_for_each_shape(self, sampling):
        """Including comparison and warm-up; every one writes the cache in place."""
        programs = PROGRAMS[sampling.decoder.compiler.way]

        assert (programs, 5 * programs) == (sampling.executables, sampling.aliased)

    def test_no_forward_compiles(self, sampling):
        """Neither text nor speculation, with or without the chain; a value traced as a constant would."""
        import torch_xla.debug.metrics as metrics

        metrics.clear_all()

        Generator(sampling.decoder, stop=STOP, **CHOSEN)(PROMPTS)
        SpeculativeGenerator(sampling.decoder, PromptLookup(), stop=STOP, **CHOSEN)(PROMPTS)
        Generator(sampling.decoder, stop=STOP)(PROMPTS)

        assert metrics.counter_value("UncachedCompile") is None
        assert metrics.counter_value("CachedCompile") > 40

    def test_hold_nothing_that_is_refused(self, sampling):
        """As many sorts as top-k calls, for which torch_neuronx has a custom call."""
        texts = hlo_of(sampling)

        assert PROGRAMS[sampling.decoder.compiler.way] == len(texts)
        for name, text in texts.items():
            rules = [finding.rule for finding in lint_hlo(text)]
            # One of top-k, one of top-p among its survivors.
            assert (["sort"] * 2 if "fused" in name else []) == rules

    def test_compute_nothing_in_64_bits(self, sampling):
        """XLA compares int32 with 64-bit numbers; nothing else has more than 32 bits."""
        for text in hlo_of(sampling).values():
            wide = set(re.findall(r" = [su]64\[\d[^ ]* ([a-z\-]+)\(", text))

            assert wide <= {"convert", "broadcast"}
            assert "f64[" not in text

    def test_leave_the_logits_on_the_device(self, sampling):
        """With NxD, 4 bytes per token are copied back until the scores are read."""
        import torch_xla.debug.metrics as metrics

        decoder = sampling.decoder
        if decoder.compiler.way != "nxd":
            # torch_neuronx.trace copies all outputs to the host.
            return
        history = History(*(torch.ones(shape).long() for shape in ((2, 1, 63), (2, 1), (2,), (2,))))
        metrics.clear_all()

        # This forward is not in the record of fed tokens.
        Slots.of(decoder).forget()
        _, scores = decoder.forward_and_sample(torch.tensor([[3], [4]]), torch.tensor([0, 0]), history)

        assert 2 * 4 == metrics.metric_data("InboundData")[1]
        assert (2, 1, decoder.shape.vocab_size) == scores.logits.shape
        assert 2 * 4 * (1 + decoder.shape.vocab_size) == metrics.metric_data("InboundData")[1]


def hlo_of(built: Built) -> dict[str, str]:
    """The compiler's input by program."""
    folder = Path(built.decoder.compiler.compiler_workdir)
    # torch_neuronx.trace has one graph, which samples.
    return {
        str(path.parent.relative_to(folder)).replace(".", "fused"): path.read_text()
        for path in folder.rglob("graph.hlo")
    }


@pytest.fixture
def saved(sampling: Built, tmp_path: Path) -> Path:
    """The folder of a decoder that samples."""
    sampling.decoder.save(tmp_path / "decoder")
    return tmp_path / "decoder"


@pytest.fixture
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing fails."""
    import neuronx_distributed
    import torch_neuronx

    monkeypatch.setattr(torch_neuronx, "trace", None)
    monkeypatch.setattr(neuronx_distributed.ModelBuilder, "trace", None)


def text(decoder: CompiledDecoder, **parts: Any) -> list[list[int]]:
    """Text generated with a decoder."""
    return Generator(decoder, stop=STOP, **parts)(PROMPTS).ids


class TestSaved:
    """Saving and loading."""

    def test_into_another_process(self, sampling, saved, modules):
        """It traces nothing, samples in the programs and generates the same text."""
        code = f"""
            import json
            import torch_neuronx
            from decodekit.decoding import Generator, MaxNewTokens, Sample
            from decodekit.neuron_backend import load_decoder
            from decodekit.processors import MinP, RepetitionPenalty, Temperature, TopK, TopP
            torch_neuronx.trace = None
            if {sampling.decoder.compiler.way!r} == "nxd":
                import neuronx_distributed
                neuronx_distributed.ModelBuilder.trace = None
            chain = RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.95) | MinP(0.02)
            parts = dict(processors=chain, sampler=Sample(seed=7))
            decoder = load_decoder({str(saved)!r}, **parts)
            generator = Generator(decoder, stop=MaxNewTokens(45), **parts)
            ids = generator({PROMPTS!r}).ids
            print(json.dumps([decoder.compiled, generator.explain().on_device, ids]))
        """
        paths = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )

        assert 0 == process.returncode, process.stderr
        expected = [False, True, text(sampling.decoder, **CHOSEN)]
        assert expected == json.loads(process.stdout.splitlines()[-1])

    @pytest.mark.usefixtures("no_tracing")
    def test_without_their_chain_the_host_samples(self, sampling, saved):
        """From plain programs, or from one with neutral sampling inputs."""
        loaded = load_decoder(saved)

        assert () == loaded.sampling_widths
        assert text(sampling.decoder) == text(loaded)
        assert text(sampling.decoder, **CHOSEN) == text(loaded, **CHOSEN)

    @pytest.mark.usefixtures("no_tracing")
    def test_with_another_chain_the_host_samples(self, sampling, saved):
        """A load compiles nothing, and explain() says so."""
        loaded = load_decoder(saved, processors=Temperature(0.5), sampler=Sample(seed=7))

        assert NOT_SAVED in str(loaded.explain())
        assert text(sampling.decoder, **CHOSEN) == text(loaded, **CHOSEN)

    @pytest.mark.usefixtures("no_tracing")
    def test_can_be_saved_again(self, sampling, saved, tmp_path):
        """With the samplers' constants."""
        load_decoder(saved, **CHOSEN).save(tmp_path / "copy")

        loaded = load_decoder(tmp_path / "copy", **CHOSEN)

        assert (1, 5) == loaded.sampling_widths
        assert text(sampling.decoder, **CHOSEN) == text(loaded, **CHOSEN)

    def test_are_not_trusted_with_other_constants(self, sampling, saved, monkeypatch):
        """Constants are trusted like programs: those of another machine are compiled again."""
        name = "traced.safetensors"
        tensors = load_file(saved / "programs" / name)
        assert tensors
        save_file({key: tensor + 1 for key, tensor in tensors.items()}, saved / "programs" / name)
        manifest = Manifest.read(saved)
        files = {file: file_sha256(saved / file) for file in manifest.files}
        attrs.evolve(manifest, files=files).write(saved)

        def reached(*_: Any) -> None:
            raise Reached

        monkeypatch.setattr(TracedTarget, "compile", reached)

        with pytest.raises(Reached):
            load_decoder(saved, **CHOSEN)


class Reached(Exception):  # noqa: N818 (not an error: the point that a test is to reach)
    """Compilation has begun."""
