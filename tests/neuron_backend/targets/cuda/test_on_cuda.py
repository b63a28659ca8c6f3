"""
What a person with a GPU runs: ``pytest -m cuda tests/neuron_backend``.

The usual suite leaves these out and runs the same tests through a stand-in on the CPU, so that the
tests themselves are known to work, and with them all that is not a kernel. Rounding is the GPU's own:
where a text parts from the eager one, the smallest gap between two choices must have been within
what the logits are known to differ by; on the stand-in none may part.
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
    """As far as it goes without a GPU."""
    return CudaTarget(**{"backend": None, "runtime": CudaStandIn(), **options})


def gpu(**options: Any) -> CudaTarget:
    """The current one."""
    return attrs.evolve(target_named("cuda"), **options)


@attrs.frozen(eq=False)
class Pair(on_device.Pair):
    """A decoder on a GPU, and an eager one."""

    @classmethod
    def of(cls, model: PreTrainedModel, target: CudaTarget, parts: Any = None, **options: Any) -> "Pair":
        """
        Both over *model*; the first with *parts* behind its forwards.

        In float32, on the stand-in, no text may part.
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
        """As everywhere, over longer texts."""
        return super().check(parts, drafter, prompts=prompts, stop=stop)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(stand_in, id="stand-in"),
        pytest.param(gpu, id="gpu", marks=pytest.mark.cuda),
    ],
)
def target(request: pytest.FixtureRequest) -> Targets:
    """Makes one."""
    made: Targets = request.param
    return made


@pytest.fixture(scope="module")
def pair(target: Targets, tiny_model: Models) -> Pair:
    """Three widths and a tree width, over two spans; nothing chooses there."""
    return Pair.of(tiny_model("llama"), target(), tree_widths=(4,), **SHAPE)


@pytest.fixture(scope="module")
def choosing(target: Targets, tiny_model: Models) -> Pair:
    """With a chain behind the forwards."""
    return Pair.of(tiny_model("llama"), target(), PARTS["chain"], **SMALL)


@pytest.fixture(scope="module")
def draft(tiny_model: Models) -> CompiledDecoder:
    """One that is right in part: the same weights, under a window of 16."""
    return compile_decoder(tiny_model("mistral"), target="eager", **{**SMALL, "widths": (1, 2)})


@pytest.mark.parametrize("parts", PARTS)
class TestText:
    def test_is_eagers(self, parts: str, pair: Pair) -> None:
        """A prompt of two chunks beside a short one, from one span into the next."""
        pair.check(PARTS[parts])

    def test_is_eagers_with_a_draft_ahead(self, parts: str, pair: Pair, draft: CompiledDecoder) -> None:
        """Rewinds, where the draft was wrong."""
        found = pair.check(PARTS[parts], DraftModel(draft))

        assert 0 < sum(found.statistics.accepted) < sum(found.statistics.drafted)

    def test_is_eagers_with_trees_ahead(self, parts: str, pair: Pair, draft: CompiledDecoder) -> None:
        """Columns in scratch slots."""
        pair.check(PARTS[parts], DraftTree(draft, tree=Tree.comb(2, 1)))


class TestChoice:
    """Chain and sampler behind the logits, with the host's noise."""

    def test_is_the_hosts(self, choosing: Pair) -> None:
        """Plain."""
        assert choosing.compiled.can_sample(PARTS["chain"]["processors"], PARTS["chain"]["sampler"], 2)
        choosing.check(PARTS["chain"])

    def test_is_the_hosts_with_a_draft_ahead(self, choosing: Pair, draft: CompiledDecoder) -> None:
        """In each column."""
        choosing.check(PARTS["chain"], DraftModel(draft))

    def test_is_the_hosts_with_another_seed(self, choosing: Pair) -> None:
        """It is part of the noise, which comes in."""
        choosing.check({**PARTS["chain"], "sampler": Sample(seed=8)})

    def test_another_chain_runs_on_the_host(self, choosing: Pair) -> None:
        """Nothing is lost."""
        choosing.check(PARTS["sampled"])

    def test_is_kept_by_who_asked_for_it(self, choosing: Pair) -> None:
        """What comes to the host is ids alone; the logits stay until somebody reads them."""
        decoder = choosing.compiled
        step, span = decoder.fused_steps()[0][0], decoder.spans[-1]
        program = decoder.fused_programs[1]
        inputs = step.padding(1, decoder.cache, span)[: -len(decoder.cache.tensors)]
        chosen, logits = program(*inputs)

        # Not where the next forward leaves its own.
        assert chosen.data_ptr() != program(*inputs)[0].data_ptr()
        assert ("cpu", decoder.cache.keys[0].device) == (chosen.device.type, logits.device)


class TestDecoder:
    def test_keeps_the_contract(self, pair: Pair) -> None:
        """Rewinds, ragged rows, padding, the last position, refusals."""
        check_decoder(pair.compiled)

    def test_makes_nothing_later(self, pair: Pair) -> None:
        """A graph for each width and span that is worth it, and no other after a text."""
        programs = [*pair.compiled.programs.values(), *pair.compiled.tree_programs.values()]
        before = [dict(program.replays) for program in programs if isinstance(program, CudaProgram)]
        pair.check(PARTS["greedy"])

        assert [2, 2, 2, 2] == [len(replays) for replays in before]
        assert before == [dict(p.replays) for p in programs if isinstance(p, CudaProgram)]

    def test_never_moves_its_cache(self, pair: Pair) -> None:
        """Graphs write where it lay."""
        before = [buffer.data_ptr() for buffer in pair.compiled.cache.tensors]
        pair.check(PARTS["sampled"])

        assert before == [buffer.data_ptr() for buffer in pair.compiled.cache.tensors]

    def test_gives_ordinary_tensors_of_the_host(self, pair: Pair) -> None:
        """Whoever gets logits may write into them, whatever mode the caller was in."""
        with torch.inference_mode():
            logits = pair.compiled.forward(torch.tensor([[1], [2]]), torch.tensor([0, 0]))

        assert ("cpu", False, False) == (logits.device.type, logits.requires_grad, logits.is_inference())

    def test_can_be_left_early(self, pair: Pair, target: Targets) -> None:
        """A draft of its first layer, by the same target."""
        early = pair.compiled.early_exit(1, widths=(1,), target=target())

        assert "cuda" == early.target
        pair.check(PARTS["sampled"], DraftModel(early))


@pytest.mark.parametrize("weights", ["int8", "int4", "float8"])
def test_weights_in_few_bits(weights: str, target: Targets, tiny_model: Models) -> None:
    """Against the same weights without a compiler."""
    Pair.of(tiny_model("llama"), target(), weights=weights, **SMALL).check(PARTS["greedy"])


@pytest.mark.parametrize("name", ["gemma2", "mixtral", "gpt2", "bloom"])
def test_other_architectures(name: str, target: Targets, tiny_model: Models) -> None:
    """Layers of two kinds, experts, transposed layers, biases by distance."""
    Pair.of(tiny_model(name), target(), **SMALL).check(PARTS["greedy"])


def test_half_precision(target: Targets, tiny_model: Models) -> None:
    """What a GPU is for."""
    Pair.of(tiny_model("llama"), target(), dtype="bfloat16", **SMALL).check(PARTS["chain"])


def test_a_saved_decoder_comes_back(target: Targets, tiny_model: Models, tmp_path: Path) -> None:
    """It is saved from the host's weights, recorded again, and gives the same bits; its choice too."""
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
