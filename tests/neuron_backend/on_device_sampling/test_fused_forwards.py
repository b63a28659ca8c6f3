"""Decoders that sample: the host's tokens, and the explanation of what runs where."""

from functools import partial

import pytest
import torch

from decodekit.decoding import Generator, Greedy, History, Mirostat, Sample
from decodekit.decoding.sampling import noise
from decodekit.neuron_backend.targets.eager_target import EagerTarget
from decodekit.processors import (
    Chain,
    DynamicTemperature,
    FrequencyPenalty,
    MinP,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
)
from decodekit.speculation import DraftModel, DraftTree, PromptLookup, Tree

from .sampling import PROMPTS, STOP, WITHOUT, build, texts
from .test_device_sampling import SAFE

CHAINS = {
    "none": None,
    "default": RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.9) | MinP(0.02),
    "counts": FrequencyPenalty(0.3) | PresencePenalty(0.2) | NoRepeatNgram(2) | Temperature(1.3) | TopP(0.95),
}
SAMPLERS = {"greedy": Greedy(), "sample": Sample(seed=7)}
every_chain = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


@pytest.fixture(scope="module")
def eager(tiny_model):
    """A decoder to be fused by the test."""
    return build(tiny_model("llama"))


@pytest.fixture(scope="module")
def host(tiny_model):
    """The same decoder, never fused."""
    return build(tiny_model("llama"))


@pytest.fixture(scope="module")
def draft(tiny_model):
    """A decoder of another model, with fewer positions and other widths."""
    return build(tiny_model("mistral"), widths=(1, 2, 16), scored_width=2, max_length=40)


@pytest.fixture(scope="module")
def pair(tiny_model):
    """Two decoders of two rows, the first to be fused."""
    return build(tiny_model("llama"), 2), build(tiny_model("llama"), 2)


@pytest.fixture
def forbidden(monkeypatch):
    """Fail if the host samples although the decoder can."""
    monkeypatch.setattr("decodekit.decoding.engine.run.SamplingPipeline.__call__", None)


class TestGeneration:
    @pytest.mark.mostly_slow(every=6)
    @every_chain
    @every_sampler
    @pytest.mark.parametrize("drafter", ["plain", "lookup", "model"])
    def test_says_what_the_host_says(self, eager, host, draft, chain, sampler, drafter):
        """Full and smaller batches, with and without draft tokens; scores too."""
        eager.fuse(chain, sampler)
        # A draft that is sometimes accepted, and samples in its own forwards.
        draft.fuse(chain, sampler)
        drafts = {"plain": lambda: None, "lookup": PromptLookup, "model": lambda: DraftModel(draft)}
        for batch in (1, 2, 3):
            parts = {"prompts": PROMPTS[:batch], "processors": chain, "sampler": sampler}

            found = texts(eager, drafter=drafts[drafter](), **parts)

            assert eager.explain().on_device
            assert texts(host, drafter=drafts[drafter](), **parts) == found

    @pytest.mark.mostly_slow(every=18)
    @every_sampler
    @pytest.mark.parametrize("processor", SAFE.values(), ids=SAFE.keys())
    def test_takes_every_safe_processor_of_the_catalogue(self, pair, processor, sampler):
        """In forwards of one column and of several; per-row parameters included."""
        decoder, host = pair
        decoder.fuse(processor, sampler)
        run = partial(texts, prompts=PROMPTS[:2], processors=processor, sampler=sampler)

        found = run(decoder, drafter=PromptLookup(1, 1))

        assert decoder.explain().on_device
        assert run(host, drafter=PromptLookup(1, 1)) == found

    @every_sampler
    def test_the_host_does_not_sample(self, tiny_model, sampler, forbidden):
        """A prompt of five tokens is fed by a forward that samples, as everything after it."""
        chain = CHAINS["default"]
        decoder = build(tiny_model("llama"), processors=chain, sampler=sampler)

        result = Generator(decoder, processors=chain, sampler=sampler, stop=STOP)([[1, 2, 3, 4, 5]])

        assert 30 == len(result.ids[0])

    @every_sampler
    @pytest.mark.parametrize("drafter", [None, PromptLookup(1, 1)], ids=["plain", "drafts"])
    def test_of_requests_that_share_rows(self, tiny_model, sampler, drafter):
        """Seven prompts on three rows: the host's tokens, of which it samples those after wide forwards."""
        chain = CHAINS["default"]
        decoder = build(tiny_model("llama"), processors=chain, sampler=sampler)
        parts = {"processors": chain, "sampler": sampler, "stop": STOP, "drafter": drafter}
        prompts = [[*prompt, token] for prompt in PROMPTS for token in (4, 9, 11)][:7]
        expected = Generator(build(tiny_model("llama")), **parts)(prompts).ids
        sampled = []
        forward = decoder.forward_and_sample
        decoder.forward_and_sample = lambda *args, **rest: sampled.append(1) or forward(*args, **rest)

        assert Generator(decoder, **parts)(prompts).ids == expected
        assert len(sampled) > 40 / (1 if drafter is None else 3)

    def test_the_seed_may_differ(self, tiny_model, forbidden):
        """It only affects the noise."""
        decoder = build(tiny_model("llama"), processors=Temperature(2.0), sampler=Sample(seed=1))
        runs = [
            Generator(decoder, processors=Temperature(2.0), sampler=Sample(seed=seed), stop=STOP)([[1, 2]])
            for seed in (1, 2)
        ]

        assert runs[0].ids != runs[1].ids

    def test_exact_width_is_one_program(self, tiny_model):
        """With draft tokens, the same bits as without, through the program that samples."""
        chain, sampler = CHAINS["default"], Sample(seed=7)
        parts = {"processors": chain, "sampler": sampler, "exact_width": True}
        decoder = build(tiny_model("llama"), processors=chain, sampler=sampler)
        decoder.programs[5] = None

        plain, drafted = (texts(decoder, PROMPTS, drafter=d, **parts) for d in (None, PromptLookup(1, 1)))

        assert plain[0] == drafted[0]
        assert texts(build(tiny_model("llama")), PROMPTS, **parts) == plain

    def test_rows_of_parameters_are_all_rows(self, tiny_model):
        """With fewer rows the host runs the chain, with its own error."""
        chain = Chain([RepetitionPenalty([1.3, 1.5, 1.7])])
        decoder = build(tiny_model("llama"), processors=chain)

        assert decoder.can_sample(chain, Greedy(), 3)
        assert not decoder.can_sample(chain, Greedy(), 2)
        with pytest.raises(ValueError, match="one value per row: got 3 for 2 rows"):
            Generator(decoder, processors=chain)(PROMPTS[:2])

    def test_names_the_stage_that_left_no_token(self, tiny_model, forbidden):
        """From the logits, which are read then."""
        chain = Temperature(0.5) | SuppressTokens(range(61))
        decoder = build(tiny_model("llama"), processors=chain)

        (finish,) = Generator(decoder, processors=chain)([[1, 2]]).finishes

        # A name of many ids is cut.
        expected = f"{repr(chain.processors[1])[:200]}..."
        assert ("no_token_left", expected) == (finish.reason, finish.matched)

    def test_an_early_exit_may_sample_too(self, tiny_model, forbidden):
        """An early exit compiled with the target's chain."""
        parts = {"processors": CHAINS["default"], "sampler": Sample(seed=7)}
        target = build(tiny_model("llama"), **parts)
        draft = target.early_exit(1, scored_width=2, **parts)

        result = Generator(target, drafter=DraftModel(draft), stop=STOP, **parts)([[1]])

        assert (1, 2) == draft.sampling_widths
        assert Generator(target, stop=STOP, **parts)([[1]]).ids == result.ids

    def test_trees_are_sampled_on_the_host(self, tiny_model):
        """The plain programs score them."""
        model, sampler = tiny_model("llama"), Sample(seed=3)
        plain = {"tree_widths": (8,)}
        drafter = DraftTree(build(model, tree_widths=(8,)), Tree.comb(2, 2))
        run = partial(texts, prompts=PROMPTS, processors=None, sampler=sampler, drafter=drafter)
        decoder = build(model, sampler=sampler, **plain)

        assert run(build(model, **plain)) == run(decoder)
        assert "in trees of draft tokens the host samples" in decoder.explain().notes


class TestForwardChoosing:
    def window(self, width, rows=3):
        """A history that begins at position 0."""
        ids = torch.arange(rows * 65).reshape(rows, 1, 65) % 61
        length = (1 + torch.arange(width)).repeat(rows, 1)
        return History(ids, length, length[:, 0], noise.random_streams(torch.arange(rows), 0))

    @pytest.mark.parametrize(
        ("width", "window_width", "rows", "message"),
        [
            pytest.param(16, 16, 3, r"one of the widths \(1, 5\): got 16", id="a-width-that-does-not-choose"),
            pytest.param(5, 4, 3, r"the lengths \[3, 5\]: got 1 and \[3, 4\]", id="columns"),
            pytest.param(5, 5, 2, r"the lengths \[3, 5\]", id="rows"),
        ],
    )
    def test_refuses_what_does_not_fit(self, tiny_model, width, window_width, rows, message):
        """Before anything is written."""
        decoder = build(tiny_model("llama"), processors=RepetitionPenalty(1.3))
        before = [tensor.clone() for tensor in decoder.cache.tensors]

        with pytest.raises(ValueError, match=message):
            decoder.forward_and_sample(
                torch.ones(3, width, dtype=torch.int64),
                torch.zeros(3, dtype=torch.int64),
                self.window(window_width, rows),
            )

        assert all(torch.equal(a, b) for a, b in zip(before, decoder.cache.tensors, strict=True))

    def test_refuses_lengths_out_of_range(self, tiny_model):
        """A gather beyond the end would fail in the middle of a forward."""
        decoder = build(tiny_model("llama"), processors=RepetitionPenalty(1.3))
        window = self.window(1)

        with pytest.raises(ValueError, match=r"'history' must have lengths >= 0 and <= 64: got 65 to 65"):
            decoder.forward_and_sample(
                torch.ones(3, 1, dtype=torch.int64),
                torch.zeros(3, dtype=torch.int64),
                window.at(window.length + 64),
            )

    def test_refuses_parts_of_the_wrong_kind(self, tiny_model):
        """When the decoder is compiled."""
        with pytest.raises(TypeError, match=r"'processors' must be callable \(join several with \|\)"):
            build(tiny_model("llama"), processors=[TopK(3)])
        with pytest.raises(TypeError, match="'sampler' must be an instance: got the class Sample"):
            build(tiny_model("llama"), sampler=Sample)


class TestExplain:
    def test_says_what_is_part_of_the_forward(self, tiny_model):
        """And what the host does nevertheless."""
        chain = Temperature(0.5) | TopK(5)
        decoder = build(tiny_model("llama"), processors=chain, sampler=Sample(seed=3))

        assert (
            "part                          runs on  why\n"
            "Temperature(temperature=0.5)  device   it is part of the forward\n"
            "TopK(k=5, ties='keep')        device   it is part of the forward\n"
            "Sample(seed=3)                device   it is part of the forward\n"
            "note: if the scores are read, the logits are processed again on the host\n"
            "note: after a forward of 16 columns, as of a prompt, the host samples"
        ) == str(decoder.explain())
        assert decoder.explain() == Generator(decoder, processors=chain, sampler=Sample(seed=3)).explain()

    @pytest.mark.parametrize(
        ("compiled_with", "requested", "whys"),
        [
            pytest.param(
                None,
                Temperature(0.5),
                [WITHOUT] * 2,
                id="compiled-without",
            ),
            pytest.param(
                Temperature(0.6),
                Temperature(0.5),
                ["the decoder was compiled with another chain or sampler"] * 2,
                id="another-chain",
            ),
            pytest.param(
                Temperature(0.5) | DynamicTemperature(0.5, 1.5),
                None,
                [
                    "all run in one place, and DynamicTemperature cannot run on the device",
                    "it does not declare itself device_safe, and has no device variant",
                    "all run in one place, and DynamicTemperature cannot run on the device",
                ],
                id="no-device-variant",
            ),
        ],
    )
    def test_says_why_the_host_samples(self, tiny_model, compiled_with, requested, whys):
        """For each part."""
        decoder = build(tiny_model("llama"), processors=compiled_with)

        placement = decoder.explain(requested, None if requested is None else Greedy())

        assert ["host"] * len(whys) == [place.where for place in placement.places]
        assert whys == [place.why for place in placement.places]

    def test_says_that_the_rows_differ(self, tiny_model):
        """For an existing decoder; compile_decoder refuses them."""
        decoder = build(tiny_model("llama"))
        decoder.fuse(TopK([1, 2]), None)

        whys = [place.why for place in decoder.explain(TopK([1, 2])).places]

        assert ["'k' must have one value per row: got 2 for 3 rows"] * 2 == whys

    def test_names_what_it_was_compiled_with(self, tiny_model):
        """In the notes."""
        decoder = build(tiny_model("llama"), processors=TopK(3))

        (note,) = decoder.explain(TopK(4)).notes

        assert "the decoder was compiled with TopK(k=3, ties='keep') and Greedy()" == note

    def test_a_sampler_without_a_device_variant(self, tiny_model):
        """It runs on the host, as the explanation says."""
        decoder = build(tiny_model("llama"), processors=TopK(5), sampler=Mirostat(3.0))
        generator = Generator(decoder, processors=TopK(5), sampler=Mirostat(3.0), stop=STOP)

        whys = [place.why for place in generator.explain().places]

        assert [
            "all run in one place, and Mirostat cannot run on the device",
            "only Greedy and Sample have a device variant",
        ] == whys
        assert 30 == len(generator([[1, 2]]).ids[0])

    def test_a_target_without_sampling(self, tiny_model):
        """A target may ignore the fusion."""

        class Plain(EagerTarget):
            def compile(self, decoder):
                decoder.replace_programs(
                    decoder.programs, decoder.tree_programs, target=self, packages={}, compiled=True
                )

        chain = Temperature(0.5)
        decoder = build(tiny_model("llama"), processors=chain, target=Plain())

        assert ["the decoder's target compiled no program that samples"] * 2 == [
            place.why for place in decoder.explain().places
        ]
        assert () == decoder.sampling_widths
        run = partial(texts, prompts=PROMPTS, processors=chain, sampler=Greedy())
        assert run(build(tiny_model("llama"))) == run(decoder)
