"""Own kernels in place of parts of transformers' models, while they are traced."""

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.neuron_backend.targets.cpu.graph_rewrites import rewrite_graph
from decodekit.neuron_backend.targets.cpu.kernel_library import KernelDtypes
from decodekit.neuron_backend.targets.cpu.traced_kernels import attend, traced_kernels
from decodekit.neuron_backend.targets.cpu.unproved_products import unproved_products


def traced(model):
    """The graph of a step of five columns, rewritten."""
    decoder = StaticDecoder(model, batch_size=2, max_length=32, widths=(5,))
    kernels = KernelDtypes(torch.float32)
    with torch.no_grad(), traced_kernels(decoder.step, kernels):
        inputs = decoder.step.padding(5, decoder.cache, decoder.spans[0])
        module = torch.export.export(decoder.step, inputs, strict=False).graph_module
    rewrite_graph(module, kernels)
    return module


@pytest.mark.parametrize("name", ["gemma2", "mixtral", "gpt_oss", "llama4", "falcon"])
def test_no_product_is_left_to_torch(tiny_model, name):
    """Neither of experts, nor of attention; and none of them is selected by torch."""
    module = traced(tiny_model(name))

    assert unproved_products(module) == ()
    assert not module.graph.find_nodes(op="call_function", target=torch.ops.aten.topk.default)


@pytest.mark.parametrize("name", ["gemma2", "mixtral"])
def test_the_model_is_as_before(tiny_model, name):
    """After tracing, and after an error in it."""
    step = StaticDecoder(tiny_model(name), max_length=32, widths=(1,)).step

    def implementations():
        return step.model.config._attn_implementation, step.model.config._experts_implementation

    before = implementations()
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ZeroDivisionError):
            trace_and_fail(step, dtype, implementations, before)

        assert implementations() == before


def trace_and_fail(step, dtype, implementations, before):
    """Kernels of another dtype are not used."""
    with traced_kernels(step, KernelDtypes(dtype)):
        assert (implementations() != before) == (dtype == torch.float32)
        raise ZeroDivisionError


@pytest.mark.parametrize("change", [{"attention_mask": None}, {"position_bias": torch.ones(1)}], ids=str)
def test_other_scores_are_the_models_own(tiny_model, change):
    """What the kernel does not know is not left out."""
    module = tiny_model("gemma2").model.layers[0].self_attn
    query, key, value = torch.randn(1, 4, 3, 12), torch.randn(1, 2, 7, 12), torch.randn(1, 2, 7, 12)
    options = {"attention_mask": torch.randn(1, 1, 3, 7), "scaling": 0.3, "softcap": 2.0, **change}

    found, _ = attend(module, query, key, value, **options)

    expected, _ = eager_attention_forward(module, query, key, value, **options)
    torch.testing.assert_close(found, expected)
