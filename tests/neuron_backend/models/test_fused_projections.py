"""Fused QKV and gate-up projections."""

import copy

import pytest
import torch
from torch import nn

from decodekit.neuron_backend import StaticDecoder
from decodekit.neuron_backend.models.fused_projections import (
    FusedProjections,
    fuse_projections,
    merge_equal_products,
    trace_fused,
)
from decodekit.neuron_backend.quantization.int8_linear import Int8Linear
from decodekit.neuron_backend.quantization.quantized_matmul import arrange_for_kernels, cpu_matmul
from decodekit.neuron_backend.tensor_parallel.ranks import Ranks
from decodekit.neuron_backend.tensor_parallel.sharded_model import shard_model

LINEAR = torch.ops.aten.linear.default


def decoder(model, **changes):
    """An eager decoder over a copy of *model*, whose projections may be fused."""
    return StaticDecoder(copy.deepcopy(model), **{"max_length": 32, "widths": (1, 5), **changes})


def fuse(made):
    """Fuse projections as the CPU target does."""
    made.step.fused = fuse_projections(made.step.model)
    return made.step.fused


def traced(made, width, fused):
    """The graph of a step, and its output for some tokens."""
    inputs = made.step.padding(width, made.cache, 32)
    with torch.no_grad(), cpu_matmul(made.step):
        if fused:
            with trace_fused(made.step):
                program = torch.export.export(made.step, inputs, strict=False)
            merge_equal_products(program.graph_module, program.graph_signature.user_inputs)
        else:
            program = torch.export.export(made.step, inputs, strict=False)
        program.graph_module.graph.lint()
        program.graph_module.recompile()
        ids = torch.randint(0, 60, inputs[0].shape, generator=torch.Generator().manual_seed(5))
        for buffer in made.cache.tensors:
            buffer.zero_()
        outputs = program.graph_module(*_flat(program, (ids, torch.full_like(inputs[1], 3), *inputs[2:])))
    return program.graph_module.graph, outputs[-1].clone()


def _flat(program, inputs):
    """Inputs of the bare graph: weights and constants first."""
    lifted = {**program.state_dict, **program.constants}
    signature = program.graph_signature
    names = [
        signature.inputs_to_parameters.get(node.name)
        or signature.inputs_to_buffers.get(node.name)
        or signature.inputs_to_lifted_tensor_constants.get(node.name)
        for node in program.graph_module.graph.find_nodes(op="placeholder")
    ]
    given = iter(inputs)
    return [lifted[name] if name else next(given) for name in names]


def count(graph, target):
    """Number of calls of *target* in *graph*."""
    return len(graph.find_nodes(op="call_function", target=target))


@pytest.mark.mostly_slow(every=10)
@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize(("weights", "dtype"), [(None, "float32"), ("int8", "float32"), ("int8", "bfloat16")])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "opt"])
def test_gives_the_same_logits(name, weights, dtype, width, tiny_model):
    """Up to rounding; with and without biases, of floating-point and of integer weights."""
    made = decoder(tiny_model(name), weights=weights, dtype=dtype)
    _, apart = traced(made, width, fused=False)
    fuse(made)

    _, together = traced(made, width, fused=True)

    tolerance = {"float32": 1e-5, "bfloat16": 2e-2}[dtype] * apart.abs().max().item()
    torch.testing.assert_close(together, apart, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("name", "saved"), [("llama", 3), ("mistral", 3), ("opt", 2), ("gpt2", 0)])
def test_matmuls_become_fewer(name, saved, tiny_model):
    """QKV is one matmul, gate-up is one. GPT-2's QKV is fused already."""
    made = decoder(tiny_model(name))
    apart, _ = traced(made, 5, fused=False)
    fuse(made)
    together, _ = traced(made, 5, fused=True)
    layers = made.step.model.config.num_hidden_layers

    assert count(apart, LINEAR) - saved * layers == count(together, LINEAR)


def test_integer_matmuls_become_fewer(tiny_model):
    """Seven matmuls of a layer become four."""
    target = torch.ops.aten._weight_int8pack_mm.default
    made = decoder(tiny_model("llama"), weights="int8", dtype="bfloat16")
    apart, _ = traced(made, 1, fused=False)
    fuse(made)
    together, _ = traced(made, 1, fused=True)

    assert (7 * 2 + 1, 4 * 2 + 1) == (count(apart, target), count(together, target))


@pytest.mark.parametrize("weights", [None, "int8"])
def test_nothing_is_held_twice(weights, tiny_model, prefill):
    """The model's weights are views of the fused ones; its logits are unchanged, bit for bit."""
    made = decoder(tiny_model("qwen2"), weights=weights)
    before, size = prefill(made, [[3, 4, 5, 6, 7]], 5).clone(), made.weights.bytes
    fused = fuse(made)
    state = made.step.model.state_dict()
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in state.values()}

    assert torch.equal(before, prefill(made, [[3, 4, 5, 6, 7]], 5))
    assert size == made.weights.bytes == sum(storage.nbytes() for storage in storages.values())
    assert 2 * 2 == len(fused)
    assert {tensor.untyped_storage().data_ptr() for tensor in fused.state_dict().values()} <= set(storages)


def test_fused_layers_are_not_fused_again(tiny_model):
    """An early exit shares the fused memory of its decoder."""
    made = decoder(tiny_model("llama"))
    first, again = fuse(made), fuse(made)

    assert [t.data_ptr() for t in first.state_dict().values()] == [
        t.data_ptr() for t in again.state_dict().values()
    ]
    assert not any("forward" in vars(module) for module in made.step.modules())


def test_a_shard_is_fused(tiny_model):
    """Of the rows that the rank holds, not of out_features."""
    part = shard_model(tiny_model("llama"), Ranks(degree=2, rank=1, group="ranks"))
    attention = part.model.layers[0].self_attn
    apart = [
        attention.q_proj.weight.clone(),
        attention.k_proj.weight.clone(),
        attention.v_proj.weight.clone(),
    ]

    fused = fuse_projections(part)

    assert torch.equal(torch.cat(apart), fused[0].layer.weight)
    assert torch.equal(apart[1], attention.k_proj.weight)


def test_the_callers_model_keeps_its_own(tiny_model):
    """Its weights keep their memory."""
    model = copy.deepcopy(tiny_model("llama"))
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    fuse(StaticDecoder(model, max_length=32, widths=(1,)))

    assert pointers == [parameter.data_ptr() for parameter in model.parameters()]


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param((nn.Linear(4, 4), nn.Linear(4, 2, bias=False), nn.Linear(4, 2)), id="a bias is missing"),
        pytest.param((nn.Linear(4, 4), nn.Linear(3, 2), nn.Linear(4, 2)), id="other inputs"),
        pytest.param((nn.Linear(4, 4), nn.Bilinear(4, 4, 2), nn.Linear(4, 2)), id="another layer"),
    ],
)
def test_what_does_not_fit_together_is_left_alone(layers):
    """It stays as it is."""
    module = nn.Module()
    for name, layer in zip(("q_proj", "k_proj", "v_proj"), layers, strict=True):
        setattr(module, name, layer)

    assert 0 == len(fuse_projections(module))


def test_blocks_of_outputs_are_fused_where_none_is_padded():
    """Padding would be outputs of the fused layer."""
    for size, number in ((16, 1), (17, 0)):
        module, x = nn.Module(), torch.randn(3, 6)
        for name in ("gate_proj", "up_proj"):
            setattr(module, name, Int8Linear.of(torch.randn(size, 6), None))
        before = [module.gate_proj(x), module.up_proj(x)]
        arrange_for_kernels(module)
        blocks = [module.gate_proj.quantized, module.up_proj.quantized]

        fused = fuse_projections(module)

        assert number == len(fused)
        assert list(map(torch.equal, before, [module.gate_proj(x), module.up_proj(x)])) == [True, True]
        for layer in fused:
            assert torch.equal(torch.cat(blocks), layer.layer.quantized)
            assert torch.equal(torch.cat(before, dim=1), layer.layer(x))
            assert module.up_proj.quantized.data_ptr() == layer.layer.quantized[1:].data_ptr()


def test_layers_that_read_something_else_are_still_right():
    """Each takes its own columns; the graph keeps one matmul per input."""
    layers = [nn.Linear(4, 3), nn.Linear(4, 2)]
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    expected = layers[0](x), layers[1](y)
    fused = FusedProjections(layers)

    with fused.traced():
        found = layers[0](x), layers[1](y)

    torch.testing.assert_close(found, expected)
