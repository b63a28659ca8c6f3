"""
What a person with a Neuron device runs: ``pytest -m neuron tests/neuron_backend``.

Each test runs on the device that the probe finds; without one it fails, and says what was found.
The usual suite leaves these out and runs the same tests through a stand-in for TorchNeuron's
backend on the CPU, so that the tests themselves are known to work.

Rounding is the device's own. Where a text parts from the eager one, the smallest gap between two
choices must have been within what the logits are known to differ by; on the stand-in none may part.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding import Generation, Generator, Greedy, MaxNewTokens, Sample, Slots
from decodekit.neuron_backend import NativeTarget, StaticDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.targets.native_program import NativeProgram
from decodekit.neuron_backend.targets.target import Target, target_named
from decodekit.neuron_backend.wrapped import CallableDecoder
from decodekit.processors import RepetitionPenalty, Temperature, TopP
from decodekit.speculation import DraftModel, DraftTree, SpeculativeGenerator, Tree
from decodekit.testing import check_decoder

from .dynamo_stand_in import StandIn

Models = Callable[..., PreTrainedModel]

SHAPE: dict[str, Any] = {"batch_size": 2, "max_length": 48, "widths": (1, 5, 16), "spans": (48,)}
SMALL: dict[str, Any] = {**SHAPE, "widths": (1, 5)}
PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 22, 31, 4, 4, 56, 12, 40, 7, 19, 2], [60, 1, 30]]
PARTS: dict[str, dict[str, Any]] = {
    "greedy": {"processors": RepetitionPenalty(1.2), "selection": Greedy()},
    "sampled": {"processors": Temperature(0.9) | TopP(0.95), "selection": Sample(seed=3)},
}


def stand_in() -> Target:
    """The native target, as far as it goes without a device."""
    return NativeTarget(backend=StandIn(), device="cpu")


def device() -> Target:
    """For what the probe finds."""
    return target_named("neuron")


@attrs.frozen(eq=False)
class Pair:
    """A decoder that is compiled and one that is not."""

    compiled: StaticDecoder
    eager: StaticDecoder
    exact: bool
    """Whether no text may part."""

    @classmethod
    def of(cls, model: PreTrainedModel, target: Target, **options: Any) -> "Pair":
        """Both over *model*."""
        compiled = compile_decoder(model, target=target, **options)
        return cls(compiled, compile_decoder(model, target="eager", **options), "cpu" == _place(target))

    def check(self, parts: dict[str, Any], drafter: Any = None) -> None:
        """The text of one is the other's, up to rounding; the draft runs ahead of the compiled one alone."""
        parts = {**parts, "stop": MaxNewTokens(28)}
        # Forwards that went past them have written over what they know.
        for decoder in (self.eager, self.compiled):
            Slots.of(decoder).forget()
        expected = Generator(self.eager, record_gap=True, **parts)(PROMPTS)
        if drafter is None:
            found = Generator(self.compiled, **parts)(PROMPTS)
        else:
            found = SpeculativeGenerator(self.compiled, drafter, num_draft_tokens=4, **parts)(PROMPTS)
        self.check_texts(expected, found)

    def check_texts(self, expected: Generation, found: Generation) -> None:
        """The rule of this module."""
        assert sum(len(set(row)) for row in expected.ids) > 10
        if self.exact:
            assert expected.ids == found.ids
        elif expected.ids != found.ids:
            # Twice the difference, and as much again for what temperature and penalty make of it.
            assert expected.statistics.smallest_gap is not None
            assert expected.statistics.smallest_gap < 4 * self.difference(expected)

    def difference(self, result: Generation) -> float:
        """The largest between the logits of both, over the tokens of a text."""
        largest = 0.0
        for column, ids in enumerate(torch.tensor(row)[:, None] for row in zip(*result.ids, strict=True)):
            position = torch.full((2,), column)
            logits = [decoder.forward(ids, position) for decoder in (self.eager, self.compiled)]
            largest = max(largest, float((logits[0] - logits[1]).abs().max()))
        return largest


def _place(target: Target) -> str:
    return getattr(target, "device", "neuron")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(stand_in, id="stand-in"),
        pytest.param(device, id="device", marks=pytest.mark.neuron),
    ],
)
def target(request: pytest.FixtureRequest) -> Callable[[], Target]:
    """Makes one."""
    made: Callable[[], Target] = request.param
    return made


@pytest.fixture(scope="module")
def pair(target: Callable[[], Target], tiny_model: Models) -> Pair:
    """Three widths, and a tree width where trees are compiled."""
    made = target()
    trees = () if made.name == "neuron-traced" else (4,)
    return Pair.of(tiny_model("llama"), made, tree_widths=trees, **SHAPE)


@pytest.fixture(autouse=True)
def nothing_is_left_to_the_host() -> Iterator[None]:
    """Nor has anything been before; only TorchNeuron can tell."""
    runtime: Any = sys.modules.get("torch_neuronx")
    if hasattr(runtime, "clear_op_tracking"):
        runtime.clear_op_tracking()
    yield
    assert [] == (runtime.get_fallback_ops() if hasattr(runtime, "get_fallback_ops") else [])


@pytest.mark.parametrize("parts", PARTS)
class TestText:
    def test_is_eagers(self, parts: str, pair: Pair) -> None:
        """A prompt of two chunks beside a short one."""
        pair.check(PARTS[parts])

    def test_is_eagers_with_a_draft_ahead(self, parts: str, pair: Pair, tiny_model: Models) -> None:
        """One that is right in part."""
        draft = compile_decoder(tiny_model("mistral"), target="eager", **{**SMALL, "widths": (1, 2)})
        pair.check(PARTS[parts], DraftModel(draft))

    def test_is_eagers_with_trees_ahead(self, parts: str, pair: Pair, tiny_model: Models) -> None:
        """Columns in scratch slots."""
        if not pair.compiled.tree_widths:
            pytest.skip("target 'neuron-traced' compiles no trees")
        draft = compile_decoder(tiny_model("mistral"), target="eager", **{**SMALL, "widths": (1, 2)})
        pair.check(PARTS[parts], DraftTree(draft, tree=Tree.comb(2, 1)))


def test_the_contract_is_kept(pair: Pair) -> None:
    """Rewinds, ragged rows, padding, the last position, refusals."""
    check_decoder(pair.compiled)


def test_nothing_is_compiled_for_a_text(pair: Pair) -> None:
    """One program for each width, and no other afterwards."""
    programs = {**pair.compiled.programs, **pair.compiled.tree_programs}
    pair.check(PARTS["greedy"])

    assert {1, 5, 16, *pair.compiled.tree_widths} == set(programs)
    made = [
        span.backend.compilations
        for program in programs.values()
        if isinstance(program, NativeProgram)
        for span in program.spans.values()
    ]
    assert all(count == 1 for count in made)
    assert len(made) == (4 if pair.compiled.target == "neuron-native" else 0)


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_text_in_half_precision(dtype: str, target: Callable[[], Target], tiny_model: Models) -> None:
    """What a device is for. Its rounding is its own, so the text may part where two tokens are close."""
    pair = attrs.evolve(Pair.of(tiny_model("llama"), target(), dtype=dtype, **SMALL), exact=False)
    pair.check(PARTS["greedy"])
    pair.check(PARTS["sampled"])


def test_a_saved_decoder_comes_back(
    target: Callable[[], Target], pair: Pair, tmp_path: Path, tiny_model: Models
) -> None:
    """It is saved from the host's weights, and gives the same bits."""
    decoder = compile_decoder(tiny_model("llama"), target=target(), **{**SMALL, "widths": (1,)})
    decoder.save(tmp_path / "decoder")
    loaded = load_decoder(tmp_path / "decoder", target=target())

    assert decoder.target == loaded.target
    for position, token in enumerate([5, 9, 2]):
        ids, cache_pos = torch.tensor([[token], [7]]), torch.full((2,), position)
        assert torch.equal(decoder.forward(ids, cache_pos), loaded.forward(ids, cache_pos))


def test_two_decoders_do_not_disturb_each_other(
    pair: Pair, target: Callable[[], Target], tiny_model: Models
) -> None:
    """A target and a draft of its own layers, on one core: the weights lie there once."""
    draft = pair.compiled.early_exit(1, widths=(1,), target=target())
    pair.check(PARTS["sampled"], DraftModel(draft))


def test_a_choice_on_the_device(target: Callable[[], Target], tiny_model: Models) -> None:
    """Chain and selection behind the logits, with the host's noise."""
    small = {**SMALL, "widths": (1,)}
    decoder = compile_decoder(tiny_model("llama"), target=target(), **small, **PARTS["sampled"])
    eager = compile_decoder(tiny_model("llama"), target="eager", **small)
    pair = Pair(decoder, eager, "cpu" == _place(decoder.compiler))
    pair.check(PARTS["sampled"])

    if decoder.target == "neuron-native":
        assert decoder.chooses(PARTS["sampled"]["processors"], PARTS["sampled"]["selection"], 2)


def test_weights_in_8_bits(target: Callable[[], Target], tiny_model: Models) -> None:
    """Against the same weights without a compiler."""
    Pair.of(tiny_model("llama"), target(), weights="int8", **SMALL).check(PARTS["greedy"])


def test_a_program_of_ones_own(pair: Pair) -> None:
    """A callable over the device, behind the rules for decoders that others compiled."""
    shape = copy.copy(pair.compiled.shape)
    wrapped = CallableDecoder(lambda ids, positions: pair.compiled.forward(ids, positions[:, 0]), shape)
    parts: dict[str, Any] = {**PARTS["greedy"], "stop": MaxNewTokens(28)}
    pair.check_texts(
        Generator(pair.eager, record_gap=True, **parts)(PROMPTS), Generator(wrapped, **parts)(PROMPTS)
    )
