"""Decoders that choose: the host's tokens, and what is said about where they are chosen."""

from functools import partial

import pytest
import torch

from decodekit.decoding import (
    Choose,
    Generator,
    Greedy,
    History,
    Logprobs,
    MaxNewTokens,
    Mirostat,
    Sample,
    noise,
)
from decodekit.neuron_backend import (
    DeviceChoice,
    StaticDecoder,
    UnsupportedArchitecture,
    compile_decoder,
    load_decoder,
)
from decodekit.neuron_backend.cpu_target import CpuTarget
from decodekit.neuron_backend.eager_target import EagerTarget
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

from .test_device_choice import SAFE

PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30], [7] * 20]
STOP = MaxNewTokens(30)
WITHOUT = "the decoder was compiled without a choice: pass processors and selection to compile_decoder"

CHAINS = {
    "none": None,
    "default": RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.9) | MinP(0.02),
    "counts": FrequencyPenalty(0.3) | PresencePenalty(0.2) | NoRepeatNgram(2) | Temperature(1.3) | TopP(0.95),
}
SELECTIONS = {"greedy": Greedy(), "sample": Sample(seed=7)}
every_chain = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
every_selection = pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS.keys())


def build(model, batch_size=3, widths=(1, 5, 16), **options):
    """A decoder whose widest forwards score one column; eager unless *options* say otherwise."""
    options = {"max_length": 64, "scored_width": 5, "target": "eager", **options}
    return compile_decoder(model, batch_size=batch_size, widths=widths, **options)


def texts(decoder, prompts, processors, selection, **parts):
    """New ids and log-probabilities."""
    parts = {"processors": processors, "selection": selection, "stop": STOP, **parts}
    result = Generator(decoder, **parts)(prompts, logprobs=Logprobs(stage="processed"))
    return result.ids, result.logprobs


@pytest.fixture(scope="module")
def eager(tiny_model):
    """To be fused with what a test likes."""
    return build(tiny_model("llama"))


@pytest.fixture(scope="module")
def host(tiny_model):
    """The same, never fused."""
    return build(tiny_model("llama"))


@pytest.fixture(scope="module")
def draft(tiny_model):
    """Of another model, with fewer positions and other widths."""
    return build(tiny_model("mistral"), widths=(1, 2, 16), scored_width=2, max_length=40)


@pytest.fixture(scope="module")
def pair(tiny_model):
    """Two decoders of two rows, the first to be fused."""
    return build(tiny_model("llama"), 2), build(tiny_model("llama"), 2)


@pytest.fixture
def forbidden(monkeypatch):
    """The host may not choose where the decoder can."""
    monkeypatch.setattr("decodekit.decoding.loop.Choose.__call__", None)


class TestGeneration:
    @every_chain
    @every_selection
    @pytest.mark.parametrize("drafter", ["plain", "lookup", "model"])
    def test_says_what_the_host_says(self, eager, host, draft, chain, selection, drafter):
        """Ragged rows, as many as the decoder has and fewer, with and without guesses; scores too."""
        eager.fuse(chain, selection)
        # One that agrees now and then, and chooses in its own forwards.
        draft.fuse(chain, selection)
        drafts = {"plain": lambda: None, "lookup": PromptLookup, "model": lambda: DraftModel(draft)}
        for batch in (1, 2, 3):
            parts = {"prompts": PROMPTS[:batch], "processors": chain, "selection": selection}

            found = texts(eager, drafter=drafts[drafter](), **parts)

            assert eager.explain().on_device
            assert texts(host, drafter=drafts[drafter](), **parts) == found

    @every_selection
    @pytest.mark.parametrize("processor", SAFE.values(), ids=SAFE.keys())
    def test_takes_every_safe_processor_of_the_catalogue(self, pair, processor, selection):
        """In forwards of one column and of several; one parameter a row included."""
        decoder, host = pair
        decoder.fuse(processor, selection)
        run = partial(texts, prompts=PROMPTS[:2], processors=processor, selection=selection)

        found = run(decoder, drafter=PromptLookup(1, 1))

        assert decoder.explain().on_device
        assert run(host, drafter=PromptLookup(1, 1)) == found

    @every_selection
    def test_the_host_has_nothing_to_choose(self, tiny_model, selection, forbidden):
        """A prompt of five tokens comes through a forward that chooses, as everything after it."""
        chain = CHAINS["default"]
        decoder = build(tiny_model("llama"), processors=chain, selection=selection)

        result = Generator(decoder, processors=chain, selection=selection, stop=STOP)([[1, 2, 3, 4, 5]])

        assert 30 == len(result.ids[0])

    def test_a_seed_may_be_another(self, tiny_model, forbidden):
        """It comes in with the noise."""
        decoder = build(tiny_model("llama"), processors=Temperature(2.0), selection=Sample(seed=1))
        runs = [
            Generator(decoder, processors=Temperature(2.0), selection=Sample(seed=seed), stop=STOP)([[1, 2]])
            for seed in (1, 2)
        ]

        assert runs[0].ids != runs[1].ids

    def test_exact_width_is_one_program(self, tiny_model):
        """A prompt in chunks, and guesses: the same bits as without, through the program that chooses."""
        chain, selection = CHAINS["default"], Sample(seed=7)
        parts = {"processors": chain, "selection": selection, "exact_width": True}
        decoder = build(tiny_model("llama"), processors=chain, selection=selection)
        decoder.programs[5] = None

        plain, guessed = (texts(decoder, PROMPTS, drafter=d, **parts) for d in (None, PromptLookup(1, 1)))

        assert plain[0] == guessed[0]
        assert texts(build(tiny_model("llama")), PROMPTS, **parts) == plain

    def test_rows_of_parameters_are_all_rows(self, tiny_model):
        """With fewer rows the host runs the chain, and says what it always said."""
        chain = Chain([RepetitionPenalty([1.3, 1.5, 1.7])])
        decoder = build(tiny_model("llama"), processors=chain)

        assert decoder.chooses(chain, Greedy(), 3)
        assert not decoder.chooses(chain, Greedy(), 2)
        with pytest.raises(ValueError, match="one value per row: got 3 for 2 rows"):
            Generator(decoder, processors=chain)(PROMPTS[:2])

    def test_says_who_left_no_token(self, tiny_model, forbidden):
        """From logits that are asked for then."""
        chain = Temperature(0.5) | SuppressTokens(range(61))
        decoder = build(tiny_model("llama"), processors=chain)

        (ending,) = Generator(decoder, processors=chain)([[1, 2]]).endings

        assert ("no_token_left", repr(chain.processors[1])) == (ending.reason, ending.matched)

    def test_trees_go_on_as_ever(self, tiny_model):
        """The plain programs score them."""
        model, selection = tiny_model("llama"), Sample(seed=3)
        plain = {"tree_widths": (8,)}
        drafter = DraftTree(build(model, tree_widths=(8,)), Tree.comb(2, 2))
        run = partial(texts, prompts=PROMPTS, processors=None, selection=selection, drafter=drafter)
        decoder = build(model, selection=selection, **plain)

        assert run(build(model, **plain)) == run(decoder)
        assert "in trees of guesses the host chooses" in decoder.explain().notes


class TestForwardChoosing:
    def window(self, width, rows=3):
        """A history that begins at position 0."""
        ids = torch.arange(rows * 65).reshape(rows, 1, 65) % 61
        length = (1 + torch.arange(width)).repeat(rows, 1)
        return History(ids, length, length[:, 0], noise.streams(torch.arange(rows), 0))

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
            decoder.forward_choosing(
                torch.ones(3, width, dtype=torch.int64),
                torch.zeros(3, dtype=torch.int64),
                self.window(window_width, rows),
            )

        assert all(torch.equal(a, b) for a, b in zip(before, decoder.cache.tensors, strict=True))

    def test_refuses_lengths_that_there_are_not(self, tiny_model):
        """A gather beyond the end would fail in the middle of a forward."""
        decoder = build(tiny_model("llama"), processors=RepetitionPenalty(1.3))
        window = self.window(1)

        with pytest.raises(ValueError, match=r"lengths must be >= 0 and <= 64: got 65 to 65"):
            decoder.forward_choosing(
                torch.ones(3, 1, dtype=torch.int64),
                torch.zeros(3, dtype=torch.int64),
                window.at(window.length + 64),
            )

    def test_refuses_parts_that_are_none(self, tiny_model):
        """When the decoder is compiled."""
        with pytest.raises(TypeError, match=r"'processors' must be callable \(join several with \|\)"):
            build(tiny_model("llama"), processors=[TopK(3)])
        with pytest.raises(TypeError, match="'selection' must be an instance: got the class Sample"):
            build(tiny_model("llama"), selection=Sample)


class TestExplain:
    def test_says_what_is_part_of_the_forward(self, tiny_model):
        """And what is the host's all the same."""
        chain = Temperature(0.5) | TopK(5)
        decoder = build(tiny_model("llama"), processors=chain, selection=Sample(seed=3))

        assert (
            "part                          runs on  why\n"
            "Temperature(temperature=0.5)  device   it is part of the forward\n"
            "TopK(k=5, ties='keep')        device   it is part of the forward\n"
            "Sample(seed=3)                device   it is part of the forward\n"
            "note: the logits are processed again, on the host, where somebody reads the scores\n"
            "note: after a forward of 16 columns, as of a prompt, the host chooses"
        ) == str(decoder.explain())
        assert decoder.explain() == Generator(decoder, processors=chain, selection=Sample(seed=3)).explain()

    @pytest.mark.parametrize(
        ("compiled_with", "asked", "whys"),
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
                ["the decoder was compiled with another chain or selection"] * 2,
                id="another-chain",
            ),
            pytest.param(
                Temperature(0.5) | DynamicTemperature(0.5, 1.5),
                None,
                [
                    "all run in one place, and DynamicTemperature cannot run on the device",
                    "it does not declare itself device_safe, and has no other form",
                    "all run in one place, and DynamicTemperature cannot run on the device",
                ],
                id="no-form-for-the-device",
            ),
            pytest.param(
                TopK([1, 2]),
                None,
                ["'k' must have one value per row: got 2 for 3 rows"] * 2,
                id="other-rows",
            ),
        ],
    )
    def test_says_why_the_host_chooses(self, tiny_model, compiled_with, asked, whys):
        """Part by part."""
        decoder = build(tiny_model("llama"), processors=compiled_with)

        placement = decoder.explain(asked, None if asked is None else Greedy())

        assert ["host"] * len(whys) == [place.where for place in placement.places]
        assert whys == [place.why for place in placement.places]

    def test_names_what_it_was_compiled_with(self, tiny_model):
        """To be compared."""
        decoder = build(tiny_model("llama"), processors=TopK(3))

        (note,) = decoder.explain(TopK(4)).notes

        assert "the decoder was compiled with TopK(k=3, ties='keep') and Greedy()" == note

    def test_a_selection_without_a_form(self, tiny_model):
        """Generates on the host, and says so."""
        decoder = build(tiny_model("llama"), processors=TopK(5), selection=Mirostat(3.0))
        generator = Generator(decoder, processors=TopK(5), selection=Mirostat(3.0), stop=STOP)

        whys = [place.why for place in generator.explain().places]

        assert [
            "all run in one place, and Mirostat cannot run on the device",
            "only Greedy and Sample have a form for it",
        ] == whys
        assert 30 == len(generator([[1, 2]]).ids[0])

    def test_a_target_that_leaves_the_choice_out(self, tiny_model):
        """It need not know of any."""

        class Plain(EagerTarget):
            def compile(self, decoder):
                decoder.replace_programs(
                    decoder.programs, decoder.tree_programs, target=self, packages={}, compiled=True
                )

        chain = Temperature(0.5)
        decoder = build(tiny_model("llama"), processors=chain, target=Plain())

        assert ["the decoder's target compiled no program that chooses"] * 2 == [
            place.why for place in decoder.explain().places
        ]
        assert () == decoder.choosing_widths
        run = partial(texts, prompts=PROMPTS, processors=chain, selection=Greedy())
        assert run(build(tiny_model("llama"))) == run(decoder)


class TestProbe:
    """A target whose programs choose wrongly is refused."""

    def wrong(self, tiny_model, spoil):
        """Compile with a target that spoils what the programs give."""

        class Wrong(EagerTarget):
            def compile(self, decoder):
                def spoiled(program, *inputs):
                    return spoil(*program(*inputs))

                decoder.fused_programs = {w: partial(spoiled, p) for w, p in decoder.fused_programs.items()}
                decoder.compare("the program")

        return build(tiny_model("llama"), selection=Sample(), target=Wrong())

    def test_right_ones_pass(self, tiny_model):
        """The control."""
        assert self.wrong(tiny_model, lambda ids, logits: (ids, logits)).explain().on_device

    def test_another_token_is_refused(self, tiny_model):
        """Though the logits are right."""
        with pytest.raises(UnsupportedArchitecture, match="chooses another token in 24 columns of width 1"):
            self.wrong(tiny_model, lambda ids, logits: ((ids + 1) % 61, logits))

    def test_other_logits_are_refused(self, tiny_model):
        """Though the choice may be the same."""
        with pytest.raises(UnsupportedArchitecture, match="scores otherwise where it chooses, at width 1"):
            self.wrong(tiny_model, lambda ids, logits: (ids, logits * 1.01))

    def test_failures_are_refused(self, tiny_model):
        """By the architecture's name."""
        with pytest.raises(UnsupportedArchitecture, match="failed where it chooses at width 1: ZeroDivision"):
            self.wrong(tiny_model, lambda ids, logits: 1 / 0)


CHAIN = RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.9)


@pytest.fixture(scope="module")
def compiled(tiny_model):
    """One width, which takes two programs to compile."""
    options = {"target": "cpu", "spans": (32, 64), "processors": CHAIN, "selection": Sample(seed=7)}
    return build(tiny_model("llama"), 2, (3,), scored_width=3, **options)


@pytest.fixture
def saved(compiled, tmp_path):
    compiled.save(tmp_path / "decoder")
    return tmp_path / "decoder"


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
                selection=Sample(seed=3),
                drafter=drafter,
                num_draft_tokens=2,
            )

            ids, logprobs = run(compiled)
            expected, close = run(build(tiny_model("llama"), 2, (3,), scored_width=3))

            assert expected == ids
            for row, other in zip(logprobs, close, strict=True):
                assert [t.logprob for t in other] == pytest.approx([t.logprob for t in row], abs=1e-4)

    def test_the_host_has_nothing_to_choose(self, compiled, forbidden):
        """Nor is it asked."""
        assert compiled.explain().on_device
        assert 30 == len(texts_without_logprobs(compiled, CHAIN, Sample(seed=2)))

    def test_another_chain_runs_on_the_host(self, compiled, tiny_model):
        """Through the programs that do not choose."""
        chain = CHAIN | MinP(0.1)
        run = partial(texts_without_logprobs, processors=chain, selection=Sample(seed=3))

        assert run(build(tiny_model("llama"), 2, (3,), scored_width=3)) == run(compiled)


def texts_without_logprobs(decoder, processors, selection):
    """Of one row."""
    return Generator(decoder, processors=processors, selection=selection, stop=STOP)([[5, 9, 2]]).ids[0]


class TestSaving:
    def test_comes_back_with_the_same_chain(self, compiled, saved, monkeypatch):
        """One of equal parameters will do, and nothing is compiled."""
        monkeypatch.setattr("decodekit.neuron_backend.aoti.compile_package", None)
        equal = RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.9)

        decoder = load_decoder(saved, processors=equal, selection=Sample(seed=1))

        assert (3,) == decoder.choosing_widths
        assert not decoder.compiled
        assert decoder.explain().on_device
        run = partial(texts_without_logprobs, processors=CHAIN, selection=Sample(seed=3))
        assert run(compiled) == run(decoder)

    @pytest.mark.parametrize("processors", [None, CHAIN | MinP(0.1)])
    def test_does_not_come_back_with_another(self, saved, processors):
        """Nor unasked; what there is says why, and the programs are not lost."""
        decoder = load_decoder(saved, processors=processors, selection=processors and Sample())

        assert () == decoder.choosing_widths
        whys = {place.why for place in decoder.explain().places}
        assert whys == (
            {WITHOUT}
            if processors is None
            else {"the folder holds no programs with this chain and selection: compile_decoder makes them"}
        )
        decoder.save(saved)
        assert load_decoder(saved, processors=CHAIN, selection=Sample()).explain().on_device

    def test_an_eager_decoder_takes_any(self, tiny_model, tmp_path):
        """There is no program to be missing."""
        build(tiny_model("llama")).save(tmp_path / "eager")

        decoder = load_decoder(tmp_path / "eager", processors=CHAIN, selection=Sample())

        assert (1, 5) == decoder.choosing_widths

    def test_programs_fit_one_chain(self, compiled):
        """Whatever file they lie in: the fingerprint is of the chain as well."""
        other = StaticDecoder(
            compiled.step.model, batch_size=2, max_length=64, widths=(3,), scored_width=3, spans=(32, 64)
        )
        other.fuse(CHAIN | MinP(0.1), Sample())
        names = {
            f"{s.kind}_{w}.pt2": f"{t.kind}_{w}.pt2"
            for (s, w), (t, _) in zip(compiled.fused_steps(), other.fused_steps(), strict=True)
        }
        renamed = {names.get(name, name): package for name, package in compiled.packages.items()}

        with pytest.raises(ValueError, match="fingerprint must be"):
            CpuTarget().load(other, renamed, trust_programs=True)


def test_rounding_decides_next_to_nothing():
    """20,000 draws in single precision and in double: at most a few fall otherwise."""
    vocab, chain = 61, RepetitionPenalty(1.2) | Temperature(0.8) | TopP(0.95)
    device, host = DeviceChoice(chain, Sample()), Choose(chain, Sample())
    rng, differing = torch.Generator().manual_seed(0), 0
    for batch in range(20):
        ids = torch.randint(0, vocab, (1000, 1, 12), generator=rng)
        length = torch.full((1000, 1), 9)
        window = History(ids, length, length[:, 0] - 4, noise.streams(torch.arange(1000) + 1000 * batch, 0))
        logits = 3 * torch.randn(1000, 1, vocab, generator=rng)
        differing += int((host(logits, window)[0] != device(*device.inputs(logits, window))).sum())

    assert differing <= 2
