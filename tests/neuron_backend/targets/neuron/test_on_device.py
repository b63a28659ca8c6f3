"""
The native target on a device, and through a stand-in for TorchNeuron's backend: see ``on_device``.

What is traced for a device is in ``tests/neuron_stand_in``.
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

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import NativeTarget, compile_decoder, load_decoder
from decodekit.neuron_backend.adapters import CallableDecoder
from decodekit.neuron_backend.targets.neuron.native_program import NativeProgram
from decodekit.neuron_backend.targets.target import Target
from decodekit.speculation import DraftModel, DraftTree, Tree
from decodekit.testing import check_decoder

from ...on_device import ON_DEVICE, PARTS, PROMPTS, Pair, compiler_forbidden, require_device, require_kind
from .dynamo_stand_in import StandIn

Models = Callable[..., PreTrainedModel]

SHAPE: dict[str, Any] = {"batch_size": 2, "max_length": 48, "widths": (1, 5, 16), "spans": (48,)}
SMALL: dict[str, Any] = {**SHAPE, "widths": (1, 5)}


def stand_in() -> Target:
    """The native target with the stand-in backend."""
    return NativeTarget(backend=StandIn(), device="cpu")


def device() -> Target:
    """The native target on the first core."""
    require_kind(require_device(), "native", "torch-neuronx 2.13 or later (TorchNeuron)")
    return NativeTarget()


def pair_of(model: PreTrainedModel, target: Target, **options: Any) -> Pair:
    """A decoder over *model* compiled for *target*, and an eager one."""
    compiled = compile_decoder(model, target=target, **options)
    return Pair(compiled, compile_decoder(model, target="eager", **options), "cpu" == _place(target))


def _place(target: Target) -> str:
    return getattr(target, "device", "neuron")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(stand_in, id="stand-in"),
        pytest.param(device, id="device", marks=ON_DEVICE),
    ],
)
def target(request: pytest.FixtureRequest) -> Callable[[], Target]:
    """Makes a target."""
    made: Callable[[], Target] = request.param
    return made


@pytest.fixture(scope="module")
def pair(target: Callable[[], Target], tiny_model: Models) -> Pair:
    """Decoders of three widths and a tree width."""
    return pair_of(tiny_model("llama"), target(), tree_widths=(4,), **SHAPE)


@pytest.fixture(autouse=True)
def nothing_is_left_to_the_host() -> Iterator[None]:
    """No operation is left to the host, as far as TorchNeuron reports it."""
    runtime: Any = sys.modules.get("torch_neuronx")
    if hasattr(runtime, "clear_op_tracking"):
        runtime.clear_op_tracking()
    yield
    assert [] == (runtime.get_fallback_ops() if hasattr(runtime, "get_fallback_ops") else [])


@pytest.mark.slow
@pytest.mark.parametrize("parts", PARTS)
class TestText:
    def test_is_eagers(self, parts: str, pair: Pair) -> None:
        """A prompt of two chunks beside a short one."""
        pair.check(PARTS[parts])

    def test_is_eagers_with_a_draft_model(self, parts: str, pair: Pair, tiny_model: Models) -> None:
        """A draft that is right in part."""
        draft = compile_decoder(tiny_model("mistral"), target="eager", **{**SMALL, "widths": (1, 2)})
        pair.check(PARTS[parts], DraftModel(draft))

    def test_is_eagers_with_trees(self, parts: str, pair: Pair, tiny_model: Models) -> None:
        """Columns in scratch slots."""
        draft = compile_decoder(tiny_model("mistral"), target="eager", **{**SMALL, "widths": (1, 2)})
        pair.check(PARTS[parts], DraftTree(draft, tree=Tree.comb(2, 1)))


def test_the_contract_is_kept(pair: Pair) -> None:
    """Rewinds, ragged rows, padding, the last position, refusals."""
    check_decoder(pair.compiled)


def test_nothing_is_compiled_for_a_text(pair: Pair) -> None:
    """One program for each width, and no other afterwards."""
    programs = {**pair.compiled.programs, **pair.compiled.tree_programs}
    with compiler_forbidden():
        pair.check(PARTS["greedy"])

    assert {1, 5, 16, *pair.compiled.tree_widths} == set(programs)
    assert all(isinstance(program, NativeProgram) for program in programs.values())
    made = [span.backend.compilations for program in programs.values() for span in program.spans.values()]
    assert [1] * 4 == made


@pytest.mark.slow
def test_no_rule_of_the_compiler_is_broken(pair: Pair) -> None:
    """In any graph; NativeTarget would have refused it."""
    found = pair.compiled.lint()

    assert pair.compiled.compiler.strict
    assert {"width_1", "width_5", "width_16"} <= {name.partition("_span")[0] for name in found}
    assert [] == [finding for findings in found.values() for finding in findings]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_text_in_half_precision(dtype: str, target: Callable[[], Target], tiny_model: Models) -> None:
    """The device rounds differently, so the text may differ where two tokens are close."""
    pair = attrs.evolve(pair_of(tiny_model("llama"), target(), dtype=dtype, **SMALL), exact=False)
    pair.check(PARTS["greedy"])
    pair.check(PARTS["sampled"])


@pytest.mark.slow
def test_a_saved_decoder_is_loaded(
    target: Callable[[], Target], pair: Pair, tmp_path: Path, tiny_model: Models
) -> None:
    """Saved from the host's weights, bit-identical."""
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
    """A target and an early exit of it, on one core, with shared weights."""
    draft = pair.compiled.early_exit(1, widths=(1,), target=target())
    pair.check(PARTS["sampled"], DraftModel(draft))


@pytest.mark.slow
def test_sampling_on_the_device(target: Callable[[], Target], tiny_model: Models) -> None:
    """Chain and sampler within the forward, with the host's noise."""
    small = {**SMALL, "widths": (1,)}
    decoder = compile_decoder(tiny_model("llama"), target=target(), **small, **PARTS["sampled"])
    eager = compile_decoder(tiny_model("llama"), target="eager", **small)
    pair = Pair(decoder, eager, "cpu" == _place(decoder.compiler))
    pair.check(PARTS["sampled"])

    assert decoder.can_sample(PARTS["sampled"]["processors"], PARTS["sampled"]["sampler"], 2)


@pytest.mark.slow
def test_weights_in_8_bits(target: Callable[[], Target], tiny_model: Models) -> None:
    """Against the same quantised weights, eager."""
    pair_of(tiny_model("llama"), target(), weights="int8", **SMALL).check(PARTS["greedy"])


def test_a_callable_over_the_device(pair: Pair) -> None:
    """A CallableDecoder over the program."""
    shape = copy.copy(pair.compiled.shape)
    wrapped = CallableDecoder(lambda ids, positions: pair.compiled.forward(ids, positions[:, 0]), shape)
    parts: dict[str, Any] = {**PARTS["greedy"], "stop": MaxNewTokens(28)}
    pair.check_texts(
        Generator(pair.eager, record_gap=True, **parts)(PROMPTS), Generator(wrapped, **parts)(PROMPTS)
    )
