"""
The traced target, up to tracing.

Tracing itself is tested with a stand-in for torch_neuronx, in tests/neuron_stand_in.
"""

import copy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from decodekit.decoding import Sample
from decodekit.decoding.history import History
from decodekit.neuron_backend import StaticDecoder, UnsupportedArchitecture, compile_decoder
from decodekit.neuron_backend.targets.neuron.single_trace import Padded
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget
from decodekit.processors import Temperature, Typical


def package(name: str, monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> ModuleType:
    """A package of that name, with only these attributes."""
    module = ModuleType(name)
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class Reached(Exception):  # noqa: N818 (not an error: the point that a test is to reach)
    """Tracing has begun."""


def reached(*args: Any, **kwargs: Any) -> Any:
    """Stand-in for every function that traces."""
    raise Reached


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both packages, with what is used before tracing."""
    package("torch_neuronx", monkeypatch, trace=reached, move_trace_to_device=reached)
    package("neuronx_distributed", monkeypatch, ModelBuilder=reached, NxDModel=object)


def build(model: Any, **options: Any) -> StaticDecoder:
    """A decoder of one width and one span."""
    return compile_decoder(model, max_length=16, widths=(2,), **{"target": "neuron-traced", **options})


class TestInstalled:
    """Which packages are installed."""

    def test_no_package_is_an_error(self, tiny_model, monkeypatch):
        """The message says what to install, and from where."""
        monkeypatch.setitem(sys.modules, "torch_neuronx", None)

        with pytest.raises(ValueError, match=r"needs torch-neuronx 2\.9, from https://pip\.repos\.neuron"):
            build(tiny_model("llama"))

    def test_the_stub_of_the_public_index_is_an_error(self, tiny_model, monkeypatch):
        """It can be imported, but is empty."""
        package("torch_neuronx", monkeypatch)

        with pytest.raises(ValueError, match="got none that has trace and move_trace_to_device"):
            build(tiny_model("llama"))

    @pytest.mark.usefixtures("installed")
    def test_a_stub_of_nxd_leaves_the_single_program(self, tiny_model, monkeypatch):
        """And is an error if NxD is required."""
        package("neuronx_distributed", monkeypatch)

        with pytest.raises(Reached):
            build(tiny_model("llama"), target=TracedTarget(way="auto"))
        with pytest.raises(ValueError, match="way 'nxd' needs a neuronx-distributed with ModelBuilder v2"):
            build(tiny_model("llama"), target=TracedTarget(way="nxd"))

    def test_nothing_is_imported_before_use(self, tiny_model, monkeypatch):
        """Other targets do not need the packages."""
        monkeypatch.setitem(sys.modules, "torch_neuronx", None)

        assert "eager" == build(tiny_model("llama"), target="eager").target


class Sorted(nn.Module):
    """An activation that neuronx-cc refuses."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(x.sort(dim=-1)[0])


@pytest.fixture
def sorting(tiny_model) -> PreTrainedModel:
    """A model with that activation."""
    model = copy.deepcopy(tiny_model("llama"))
    model.model.layers[0].mlp.act_fn = Sorted()
    return model


@pytest.mark.usefixtures("installed")
class TestRefusals:
    """Errors before anything is compiled."""

    @pytest.mark.parametrize("way", ["nxd", "trace"])
    def test_of_graphs_that_cannot_be_compiled(self, way, sorting):
        """The message has the operation, the rule and the place."""
        with pytest.raises(UnsupportedArchitecture, match=r"Llama.*width_2_span_16 .*NCC_EVRF029"):
            build(sorting, target=TracedTarget(way=way))

    def test_may_be_done_without(self, sorting):
        """With strict=False, the compiler decides."""
        with pytest.raises(Reached):
            build(sorting, target=TracedTarget(strict=False))

    def test_of_mixtures_of_experts_are_avoided(self, tiny_model):
        """Their default implementation sorts; the one used does not."""
        with pytest.raises(Reached):
            build(tiny_model("mixtral"))

    def test_of_trees_without_nxd(self, tiny_model):
        """Before tracing; with NxD they are possible."""
        with pytest.raises(ValueError, match=r"'tree_widths' must be \(\) for way 'trace' .*: got \(4,\)"):
            build(tiny_model("llama"), tree_widths=(4,), target=TracedTarget(way="trace"))
        with pytest.raises(Reached):
            build(tiny_model("llama"), tree_widths=(4,), target=TracedTarget(way="nxd"))

    def test_of_several_cores_without_nxd(self, tiny_model, monkeypatch):
        """Such a program has one core; the error says what supports more."""
        package("neuronx_distributed", monkeypatch)

        with pytest.raises(
            ValueError, match=r"'tp_degree' must be 1 for .* without NxD.*: got 2; TracedTarget\(way='nxd'\)"
        ):
            build(tiny_model("llama"), tp_degree=2)

    def test_of_an_nxd_that_knows_no_cores(self, tiny_model):
        """The message names the missing class."""
        with pytest.raises(ValueError, match="tp_degree 2 needs a neuronx-distributed with NxDParallelState"):
            build(tiny_model("llama"), tp_degree=2)

    def test_of_a_part_of_another_process(self, llama):
        """One process divides the model, so it needs the whole model."""
        llama.ranks = SimpleNamespace(degree=2)

        with pytest.raises(ValueError, match="must divide a whole model: got the part of one of 2 processes"):
            TracedTarget().compile(llama)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"way": "xla"}, "'way' must be in"),
            ({"compiler_args": ["-O1"]}, "'compiler_args' must be"),
            ({"compiler_workdir": 3}, "'compiler_workdir' must be"),
            ({"strict": 1}, "'strict' must be"),
        ],
    )
    def test_of_options(self, options, message):
        """When the target is constructed."""
        with pytest.raises((TypeError, ValueError), match=message):
            TracedTarget(**options)


class Shifted:
    """A processor that computes with a number of 42 bits."""

    device_safe = True

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        return logits + ((history.length + 2**41) > 2**41)[..., None]


@pytest.mark.usefixtures("installed")
class TestSampling:
    """Sampling that the device cannot do."""

    @pytest.mark.mostly_slow(every=4)
    @pytest.mark.parametrize("way", ["nxd", "trace"])
    @pytest.mark.parametrize(
        ("stage", "why"),
        [
            (Typical(0.9), "does not declare itself device_safe"),
            (Shifted(), "the device has no int64: integers must fit into 32 bits: got 2199023255552"),
        ],
        ids=["no-form", "too-wide"],
    )
    def test_stays_on_the_host(self, way, stage, why, tiny_model):
        """As a whole, with the reason for every part; the programs are compiled without it."""
        decoder = StaticDecoder(tiny_model("llama"), max_length=16, widths=(2,))
        decoder.fuse(Temperature(0.5) | stage, Sample(seed=1))

        with pytest.raises(Reached):
            TracedTarget(way=way).compile(decoder)

        placement = decoder.explain()
        assert ["host", "host", "host"] == [place.where for place in placement.places]
        assert why in placement.places[1].why
        assert () == decoder.sampling_widths


def test_is_known_by_name(tiny_model):
    """Among the other targets."""
    with pytest.raises(ValueError, match="neuron-traced"):
        build(tiny_model("llama"), target="tpu")


class TestPadded:
    """One program for every width."""

    @pytest.mark.parametrize("scored", [1, 3, 8])
    def test_equals_the_narrow_program(self, scored, tiny_model):
        """Tokens come last, so that their columns are scored."""
        widths = (1, 3, 8)
        decoder, narrow = (
            StaticDecoder(
                tiny_model("llama"), batch_size=2, max_length=32, widths=widths, scored_width=scored
            )
            for _ in range(2)
        )
        whole = StaticDecoder(tiny_model("llama"), batch_size=2, max_length=32, widths=(8,), scored_width=8)

        def program(ids: Tensor, cache_pos: Tensor, slots: Tensor) -> Tensor:
            assert (torch.int32, (2, 8)) == (ids.dtype, ids.shape)
            assert (torch.int32, torch.int32) == (cache_pos.dtype, slots.dtype)
            return whole.programs[8](ids.long(), cache_pos.long(), slots.long())[:, -scored:]

        padded = Padded(program, 8, scored, whole.cache.addresses(32))
        decoder.programs = dict.fromkeys(widths, padded)

        for ids, start in (
            ([[1, 2, 3, 4, 5, 6, 7, 8], [-1, -1, 3, 4, 5, 6, 7, 8]], [0, -2]),
            ([[9], [10]], [8, 6]),
            ([[11, 12, 13], [-1, -1, -1]], [9, 0]),
            ([[14], [-1]], [10, 0]),
        ):
            inputs = torch.tensor(ids), torch.tensor(start)
            expected, found = narrow.forward(*inputs), decoder.forward(*inputs)
            kept = inputs[0][:, -expected.shape[1] :] >= 0
            assert expected.shape == found.shape
            torch.testing.assert_close(found[kept], expected[kept], atol=1e-5, rtol=1e-5)

    def test_samples_in_the_columns_of_tokens(self):
        """Inputs per column are padded in front like the tokens; others are unchanged."""
        seen: list[list[int]] = []

        def program(ids: Tensor, cache_pos: Tensor, slots: Tensor, length: Tensor, prompt: Tensor) -> Any:
            seen.append([length.dtype == torch.int32, length.tolist(), prompt.tolist()])
            columns = torch.arange(8)[None, -4:].repeat(2, 1)
            return columns, columns[..., None].float()

        neutral = torch.ones(2, 4).int(), torch.ones(2).int()
        padded = Padded(program, 8, 4, torch.arange(32), neutral)
        ids, start = torch.tensor([[3, 4], [5, 6]]), torch.tensor([7, 8])

        chosen, logits = padded.sample(
            ids, start, torch.tensor([[8, 9], [9, 10]]), torch.tensor([3, 2]), torch.arange(32)
        )

        assert [[True, [[1, 1, 8, 9], [1, 1, 9, 10]], [3, 2]]] == seen
        assert ([[6, 7]] * 2, (2, 2, 1)) == (chosen.tolist(), logits.shape)
        assert (2, 2, 1) == padded(ids, start, torch.arange(32)).shape
        assert [True, [[1] * 4] * 2, [1, 1]] == seen[-1]
