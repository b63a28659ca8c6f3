"""HLO that torch_xla makes of models, and of operations that neuronx-cc refuses."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from decodekit.neuron_backend import StaticDecoder, UnsupportedArchitecture, compile_decoder
from decodekit.neuron_backend.lint.hlo_lint import lint_hlo
from decodekit.neuron_backend.lowering.step_graphs import ProgramShape
from decodekit.neuron_backend.targets.neuron.functional_step import FunctionalStep, padding
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget

pytestmark = pytest.mark.stand_in

PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30]]
X = torch.tensor([[0.5, 2.0, 1.0], [0.25, 0.125, 4.0]])
I = torch.tensor([[0, 1, 1], [1, 0, 1]])  # noqa: E741 (integers, beside X)


def hlo(function: Callable[..., Any], *inputs: Tensor) -> str:
    """HLO of a function."""
    import torch_xla
    import torch_xla.core.xla_builder as xb

    result = function(*(tensor.to(torch_xla.device()) for tensor in inputs))
    context = torch_xla._XLAC.lowering.LoweringContext("graph")
    context.build([result] if isinstance(result, Tensor) else list(result))
    text = xb.get_computation_hlo(xb.computation_from_module_proto("graph", context.hlo()))
    assert isinstance(text, str)
    return text


class TestRefusals:
    """The lint's rules on XLA's real output."""

    @pytest.mark.parametrize(
        ("rule", "function", "inputs"),
        [
            pytest.param("sort", lambda x: x.sort()[0], (X,), id="sort"),
            pytest.param("sort", lambda x: x.topk(2)[0], (X,), id="top-k"),
            pytest.param("variadic-reduce", lambda x: x.argmax(-1), (X,), id="argmax"),
            pytest.param("random", torch.rand_like, (X,), id="rand"),
            pytest.param("float64", lambda x: x.masked_fill(x > 1, 0.1), (X,), id="python-float"),
            pytest.param("float64", lambda x: x.double() * 2, (X,), id="double"),
            pytest.param("integer-dot", lambda i: i @ i.T, (I.int(),), id="integer-matmul"),
            pytest.param("integer-scatter", lambda i: i.scatter_add(0, i, i), (I,), id="integer-scatter-add"),
            pytest.param("int64-power", lambda i: torch.pow(i, i), (I,), id="integer-power"),
        ],
    )
    def test_are_found(self, rule, function, inputs):
        """Each rule in the HLO of a function that breaks it."""
        assert rule in [finding.rule for finding in lint_hlo(hlo(function, *inputs))]

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x.softmax(-1),
            lambda x: x @ x.T,
            lambda x: torch.where(x > torch.ones(3, device=x.device), x, -x),
            lambda x: x.scatter_add(1, x.int().long() % 3, x),
            lambda x: x.cumsum(-1),
            lambda x: x[torch.arange(2, device=x.device)],
        ],
        ids=["softmax", "matmul", "where", "scatter-add", "cumsum", "rows-by-iota"],
    )
    def test_are_not_found_elsewhere(self, function):
        """In operations of models."""
        assert [] == lint_hlo(hlo(function, X))


MODELS = ["gpt2", "opt", "gemma2", "mixtral"]


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


class TestModels:
    """Architectures besides Llama."""

    @pytest.mark.parametrize("name", MODELS)
    def test_write_the_stock_models_text(self, name, tiny_model, greedy, stock):
        """Learned positions, tied weights, windows and experts, through NxD and in strict mode."""
        decoder = compile_decoder(
            tiny_model(name),
            batch_size=2,
            max_length=48,
            widths=(1, 8),
            scored_width=1,
            spans=(48,),
            target=TracedTarget(way="nxd"),
        )

        assert stock(tiny_model(name), PROMPTS, 40) == greedy(decoder, PROMPTS, 40)

    def test_in_half_precision(self, tiny_model, greedy):
        """Logits are float32, and the text is the eager decoder's."""
        shape: dict[str, Any] = {"batch_size": 2, "max_length": 48, "widths": (1, 8), "spans": (48,)}
        model = tiny_model("llama", torch.bfloat16)
        eager = compile_decoder(model, target="eager", **shape)

        decoder = compile_decoder(model, target=TracedTarget(way="nxd"), **shape)

        ids, start = torch.tensor([PROMPTS[0][:1] * 8, PROMPTS[1][:1] * 8]), torch.tensor([0, 0])
        found, expected = decoder.forward(ids, start), eager.forward(ids, start)
        assert torch.float32 == found.dtype
        torch.testing.assert_close(found, expected, atol=0.3, rtol=0.05)

    def test_that_sort_are_refused(self, sorting):
        """The message has the architecture and all findings."""
        with pytest.raises(UnsupportedArchitecture, match=r"LlamaFor.*width_1_span_32 .*EVRF029") as raised:
            compile_decoder(sorting, max_length=32, widths=(1,), target=TracedTarget(way="nxd"))

        assert "strict=False" in str(raised.value)

    @pytest.mark.parametrize("way", ["nxd", "trace"])
    def test_that_sort_are_refused_by_the_compiler_too(self, way, sorting):
        """With strict=False, the compiler refuses them."""
        with pytest.raises(RuntimeError, match="NCC_EVRF029"):
            compile_decoder(sorting, max_length=32, widths=(1,), target=TracedTarget(way=way, strict=False))

    def test_that_sort_unseen_are_found_in_the_hlo(self, sorting, monkeypatch):
        """The lowered HLO is linted too, not only the graph."""
        monkeypatch.setattr(
            "decodekit.neuron_backend.targets.neuron.traced_target.lint_graph", lambda graph, rules: []
        )
        monkeypatch.setattr("torch_neuronx.recording.lint_hlo", lambda text: [])

        with pytest.raises(UnsupportedArchitecture, match="the HLO of width_1_span_32 holds: sort"):
            compile_decoder(sorting, max_length=32, widths=(1,), target=TracedTarget(way="nxd"))


class TestSteps:
    """HLO of a decoder's steps."""

    def test_hold_no_64_bit_tensors(self, tiny_model):
        """Only single integers are int64: none reaches a gather or a scatter."""
        decoder = StaticDecoder(tiny_model("llama"), batch_size=2, max_length=64, widths=(5,), spans=(64,))
        step = Moved(FunctionalStep(decoder.step, decoder.cache))

        text = hlo(step, *padding(ProgramShape(decoder.step, 5, 64), decoder.cache).values())

        assert [] == lint_hlo(text)
        written = [line for line in text.splitlines() if " scatter(" in line or " gather(" in line]
        # The embedding, keys and values of two layers, and their marks.
        assert 1 + 4 + 1 == len(written)
        assert not [line for line in written if "s64[" in line]

    def test_write_the_cache_without_transposing_it(self, tiny_model):
        """A transposed buffer would be copied before and after each write."""
        decoder = StaticDecoder(tiny_model("llama"), batch_size=2, max_length=64, widths=(5,), spans=(64,))
        step = Moved(FunctionalStep(decoder.step, decoder.cache))
        buffer = f"f32[{','.join(map(str, decoder.cache.keys[0].shape))}]"

        text = hlo(step, *padding(ProgramShape(decoder.step, 5, 64), decoder.cache).values())

        turned = [line for line in text.splitlines() if " transpose(" in line and buffer in line]
        # XLA adds an identity transpose after each scatter.
        assert all("dimensions={0,1,2,3}" in line for line in turned)


class Moved(nn.Module):
    """A module on the XLA device."""

    def __init__(self, module: nn.Module):
        super().__init__()
        import torch_xla

        self.module = module.to(torch_xla.device())

    def forward(self, *inputs: Tensor) -> Any:
        with torch.no_grad():
            return self.module(*inputs)
