"""
Tests on a GPU: ``pytest -m cuda tests/neuron_backend``.

The default suite leaves these out and runs the same tests through a stand-in on the CPU, so that the
tests themselves are tested, and everything but the kernels. Rounding is the GPU's own:
where a text differs from the eager one, the smallest gap between the top two tokens must be within
the known error of the logits; on the stand-in no text may differ.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding import Generation, Greedy, MaxNewTokens, Sample, StopCondition
from decodekit.neuron_backend import CompiledDecoder, CudaTarget, compile_decoder, load_decoder
from decodekit.neuron_backend.targets.cuda.cuda_program import CudaProgram
from decodekit.neuron_backend.targets.registry import target_named
from decodekit.processors import NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import DraftModel, DraftTree, Tree
from decodekit.testing import check_decoder

from ... import on_device
from .cuda_stand_in import CudaStandIn

Models = Callable[..., PreTrainedModel]
Targets = Callable[..., CudaTarget]

SHAPE: dict[str, Any] = {"batch_size": 2, "max_length": 64, "widths": (1, 5, 16), "spans": (32, 64)}
SMALL: dict[str, Any] = {**SHAPE, "widths": (1, 5), "spans": (64,)}
PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 22, 31, 4, 4, 56, 12, 40, 7, 19, 2], [60, 1, 30]]
STOP = MaxNewTokens(40)
PARTS: dict[str, dict[str, Any]] = {
    "greedy": {"sampler": Greedy()},
    "sampled": {"processors": Temperature(0.9) | TopP(0.95), "sampler": Sample(seed=3)},
    "chain": {
        "processors": RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.9),
        "sampler": Sample(seed=7),
    },
    "chain of the host": {"processors": NoRepeatNgram(2), "sampler": Greedy()},
}


def stand_in(**options: Any) -> CudaTarget:
    """The target over the stand-in."""
    return CudaTarget(**{"backend": None, "runtime": CudaStandIn(), **options})


def gpu(**options: Any) -> CudaTarget:
    """The target over the current GPU."""
    return attrs.evolve(target_named("cuda"), **options)


@attrs.frozen(eq=False)
class Pair(on_device.Pair):
    """A decoder on a GPU, and an eager one."""

    @classmethod
    def of(cls, model: PreTrainedModel, target: CudaTarget, parts: Any = None, **options: Any) -> "Pair":
        """
        Both over *model*; the first samples with *parts* in its forwards.

        In float32, on the stand-in, no text may differ.
        """
        compiled = compile_decoder(model, target=target, **options, **(parts or {}))
        if isinstance(target.runtime, CudaStandIn):
            target.runtime.sealed = True
        eager = compile_decoder(model, target="eager", **options)
        on_host = compiled.cache.keys[0].device.type == "cpu"
        return cls(compiled, eager, on_host and eager.step.model.dtype == torch.float32)

    def check(
        self,
        parts: dict[str, Any],
        drafter: Any = None,
        *,
        prompts: list[list[int]] = PROMPTS,
        stop: StopCondition = STOP,
    ) -> Generation:
        """Compare longer texts."""
        return super().check(parts, drafter, prompts=prompts, stop=stop)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(stand_in, id="stand-in"),
        pytest.param(gpu, id="gpu", marks=pytest.mark.cuda),
    ],
)
def target(request: pytest.FixtureRequest) -> Targets:
    """Makes a target."""
    made: Targets = request.param
    return made


@pytest.fixture(scope="module")
def pair(target: Targets, tiny_model: Models) -> Pair:
    """Three widths and a tree width, over two spans, without sampling."""
    return Pair.of(tiny_model("llama"), target(), tree_widths=(4,), **SHAPE)


@pytest.fixture(scope="module")
def choosing(target: Targets, tiny_model: Models) -> Pair:
    """With a chain and a sampler in the forwards."""
    return Pair.of(tiny_model("llama"), target(), PARTS["chain"], **SMALL)


@pytest.fixture(scope="module")
def draft(tiny_model: Models) -> CompiledDecoder:
    """A draft that is right in part: the same weights, with a window of 16."""
    return compile_decoder(tiny_model("mistral"), target="eager", **{**SMALL, "widths": (1, 2)})


@pytest.mark.mostly_slow(every=4)
@pytest.mark.parametrize("parts", PARTS)
class TestText:
    def test_is_eagers(self, parts: str, pair: Pair) -> None:
        """A prompt of two chunks beside a short one, across two spans."""
        pair.check(PARTS[parts])

    def test_is_eagers_with_a_draft_model(self, parts: str, pair: Pair, draft: CompiledDecoder) -> None:
        """With rewinds where the draft was wrong."""
        found = pair.check(PARTS[parts], DraftModel(draft))

        assert 0 < sum(found.statistics.accepted) < sum(found.statistics.drafted)

    def test_is_eagers_with_trees(self, parts: str, pair: Pair, draft: CompiledDecoder) -> None:
        """Columns in scratch slots."""
        pair.check(PARTS[parts], DraftTree(draft, tree=Tree.comb(2, 1)))


class TestSampling:
    """Chain and sampler within the forward, with the host's noise."""

    def test_is_the_hosts(self, choosing: Pair) -> None:
        """Plain decoding."""
        assert choosing.compiled.can_sample(PARTS["chain"]["processors"], PARTS["chain"]["sampler"], 2)
        choosing.check(PARTS["chain"])

    def test_is_the_hosts_with_a_draft_model(self, choosing: Pair, draft: CompiledDecoder) -> None:
        """In each column."""
        choosing.check(PARTS["chain"], DraftModel(draft))

    def test_is_the_hosts_with_another_seed(self, choosing: Pair) -> None:
        """The seed only changes the noise, an input."""
        choosing.check({**PARTS["chain"], "sampler": Sample(seed=8)})

    def test_another_chain_runs_on_the_host(self, choosing: Pair) -> None:
        """With the same text."""
        choosing.check(PARTS["sampled"])

    def test_tokens_stay_valid(self, choosing: Pair) -> None:
        """Only tokens are copied to the host; logits stay on the device until they are read."""
        decoder = choosing.compiled
        step, span = decoder.fused_steps()[0][0], decoder.spans[-1]
        program = decoder.fused_programs[1]
        inputs = step.padding(1, decoder.cache, span)[: -len(decoder.cache.tensors)]
        chosen, logits = program(*inputs)

        # In other memory than the next forward's.
        assert chosen.data_ptr() != program(*inputs)[0].data_ptr()
        assert ("cpu", decoder.cache.keys[0].device) == (chosen.device.type, logits.device)


class TestDecoder:
    def test_keeps_the_contract(self, pair: Pair) -> None:
        """Rewinds, ragged rows, padding, the last position, refusals."""
        check_decoder(pair.compiled)

    def test_records_nothing_later(self, pair: Pair) -> None:
        """One graph for each width and span, and no other after a text."""
        programs = [*pair.compiled.programs.values(), *pair.compiled.tree_programs.values()]
        before = [dict(program.replays) for program in programs if isinstance(program, CudaProgram)]
        pair.check(PARTS["greedy"])

        assert [2, 2, 2, 2] == [len(replays) for replays in before]
        assert before == [dict(p.replays) for p in programs if isinstance(p, CudaProgram)]

    def test_never_moves_its_cache(self, pair: Pair) -> None:
        """Graphs write to fixed addresses."""
        before = [buffer.data_ptr() for buffer in pair.compiled.cache.tensors]
        pair.check(PARTS["sampled"])

        assert before == [buffer.data_ptr() for buffer in pair.compiled.cache.tensors]

    def test_gives_ordinary_tensors_of_the_host(self, pair: Pair) -> None:
        """Callers may write to logits, in or out of inference mode."""
        with torch.inference_mode():
            logits = pair.compiled.forward(torch.tensor([[1], [2]]), torch.tensor([0, 0]))

        assert ("cpu", False, False) == (logits.device.type, logits.requires_grad, logits.is_inference())

    def test_can_be_left_early(self, pair: Pair, target: Targets) -> None:
        """An early exit after the first layer, by the same target."""
        early = pair.compiled.early_exit(1, widths=(1,), target=target())

        assert "cuda" == early.target
        pair.check(PARTS["sampled"], DraftModel(early))


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("weights", ["int8", "int4", "float8"])
def test_weights_in_few_bits(weights: str, target: Targets, tiny_model: Models) -> None:
    """Against the same quantised weights, eager."""
    Pair.of(tiny_model("llama"), target(), weights=weights, **SMALL).check(PARTS["greedy"])


@pytest.mark.mostly_slow(every=4)
@pytest.mark.parametrize("name", ["gemma2", "mixtral", "gpt2", "bloom"])
def test_other_architectures(name: str, target: Targets, tiny_model: Models) -> None:
    """Layers of two kinds, experts, transposed weights, ALiBi."""
    Pair.of(tiny_model(name), target(), **SMALL).check(PARTS["greedy"])


def test_half_precision(target: Targets, tiny_model: Models) -> None:
    """In bfloat16."""
    Pair.of(tiny_model("llama"), target(), dtype="bfloat16", **SMALL).check(PARTS["chain"])


@pytest.mark.slow
def test_a_saved_decoder_is_loaded(target: Targets, tiny_model: Models, tmp_path: Path) -> None:
    """Saved from the host's weights, recorded again, bit-identical; sampling too."""
    small = {**SMALL, "widths": (1,)}
    decoder = compile_decoder(tiny_model("llama"), target=target(), **small, **PARTS["chain"])
    decoder.save(tmp_path / "decoder")
    loaded = load_decoder(tmp_path / "decoder", target=target(), **PARTS["chain"])

    assert ("cuda", True) == (loaded.target, loaded.compiled)
    assert decoder.explain().on_device
    assert loaded.explain().on_device
    for position, token in enumerate([5, 9, 2]):
        ids, cache_pos = torch.tensor([[token], [7]]), torch.full((2,), position)
        expected = decoder.forward(ids, cache_pos).clone()
        assert torch.equal(expected, loaded.forward(ids, cache_pos))
