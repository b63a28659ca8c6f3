"""Graph rewrites for the CPU do not change results."""

import pytest
import torch

from decodekit.neuron_backend import StaticDecoder
from decodekit.neuron_backend.targets.cpu import aoti
from decodekit.neuron_backend.targets.cpu.graph_rewrites import rewrite_graph
from decodekit.neuron_backend.targets.cpu.kernel_library import Library

ATTENTION = torch.ops.decodekit.attention.default
SDPA = torch.ops.aten.scaled_dot_product_attention.default
ONEDNN = torch.ops.mkldnn._linear_pointwise.default


def exported(decoder, width):
    """A step exported by ``torch.export``, and its inputs."""
    inputs = decoder.step.padding(width, decoder.cache, 32)
    with torch.no_grad():
        program = torch.export.export(decoder.step, inputs, strict=False)
    ids = torch.randint(0, 60, inputs[0].shape, generator=torch.Generator().manual_seed(5))
    return program, (ids, torch.full_like(inputs[1], 3), *inputs[2:])


def key_heads(program):
    """Number of key heads of every attention in the graph."""
    nodes = program.graph_module.graph.find_nodes(op="call_function", target=SDPA)
    return [node.args[1].meta["val"].shape[1] for node in nodes if "val" in node.args[1].meta]


@pytest.fixture(params=["llama", "gemma2", "gpt2", "qwen3", "opt"])
def decoder(request, tiny_model):
    """Architectures with and without shared key heads, with one mask and with several."""
    return StaticDecoder(tiny_model(request.param), batch_size=2, max_length=32, widths=(1, 5))


class TestRewriteGraph:
    """One graph before and after the rewrites."""

    @pytest.mark.mostly_slow(every=4)
    @pytest.mark.parametrize("width", [1, 5])
    def test_gives_the_same_logits(self, decoder, width):
        """And the same cache, up to rounding."""
        program, inputs = exported(decoder, width)
        with torch.no_grad():
            expected = program.graph_module(*_flat(program, inputs))[-1].clone()

            rewrite_graph(program.graph_module)

            found = program.graph_module(*_flat(program, inputs))[-1]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    def test_shared_keys_are_not_repeated(self, tiny_model):
        """Four query heads on two key heads attend as two heads of twice the rows."""
        model = tiny_model("llama")
        decoder = StaticDecoder(model, batch_size=2, max_length=32, widths=(1, 5))
        program, _ = exported(decoder, 5)
        shared, heads = model.config.num_key_value_heads, model.config.num_attention_heads
        assert shared < heads
        assert [heads] * model.config.num_hidden_layers == key_heads(program)

        rewrite_graph(program.graph_module)

        assert [shared] * model.config.num_hidden_layers == key_heads(program)

    def test_unshared_heads_are_not_grouped(self, tiny_model):
        """Without repeated keys there is nothing to group."""
        model = tiny_model("gpt2")
        program, _ = exported(StaticDecoder(model, batch_size=1, max_length=32, widths=(1,)), 1)
        before = key_heads(program)

        rewrite_graph(program.graph_module)

        assert before == key_heads(program) == [model.config.n_head] * model.config.n_layer

    @pytest.mark.mostly_slow(every=5)
    @pytest.mark.skipif(not aoti.has_compiler(), reason="needs a C++ compiler")
    def test_few_columns_use_the_attention_kernel(self, decoder):
        """In every layer, over keys that are not repeated; torch's attention for more columns."""
        kernels = Library.compiled(torch.float32, (decoder.shape.batch_size,))
        for width, is_few in [(1, True), (5, False)]:
            program, _ = exported(decoder, width)
            graph = program.graph_module.graph
            attentions = len(graph.find_nodes(op="call_function", target=SDPA))

            rewrite_graph(program.graph_module, kernels)

            mine = graph.find_nodes(op="call_function", target=ATTENTION)
            assert (attentions if is_few else 0) == len(mine)
            keys = [node.args[1].meta["val"].shape[1] for node in mine]
            assert [buffer.shape[1] for buffer in decoder.cache.keys][: len(mine)] == keys

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
    def test_onednn_takes_its_dtypes(self, tiny_model, dtype):
        """float32, and 16-bit floats where the CPU supports them; float64 stays with torch."""
        known = torch.ops.mkldnn
        taken = {
            torch.float32: True,
            torch.bfloat16: known._is_mkldnn_bf16_supported(),
            torch.float16: known._is_mkldnn_fp16_supported(),
        }.get(dtype, False)
        decoder = StaticDecoder(tiny_model("llama"), batch_size=1, max_length=32, widths=(1,), dtype=dtype)
        program, _ = exported(decoder, 1)

        rewrite_graph(program.graph_module)

        graph = program.graph_module.graph
        assert taken == bool(graph.find_nodes(op="call_function", target=ONEDNN))
        assert taken != bool(graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default))


def _flat(program, inputs):
    """Inputs of the bare graph: weights and constants first."""
    lifted = {**program.state_dict, **program.constants}
    names = [
        program.graph_signature.inputs_to_parameters.get(node.name)
        or program.graph_signature.inputs_to_buffers.get(node.name)
        or program.graph_signature.inputs_to_lifted_tensor_constants.get(node.name)
        for node in program.graph_module.graph.find_nodes(op="placeholder")
    ]
    given = iter(inputs)
    return [lifted[name] if name else next(given) for name in names]
