"""Graph rewrites for the CPU do not change results."""

import pytest
import torch
from transformers.models.llama.modeling_llama import repeat_kv

from decodekit.neuron_backend import StaticDecoder
from decodekit.neuron_backend.targets.cpu.graph_rewrites import rewrite_graph
from decodekit.neuron_backend.targets.cpu.kernel_library import NO_LIBRARY, NoLibrary
from decodekit.neuron_backend.targets.cpu.unproved_products import unproved_products

ATTENTION = torch.ops.decodekit.attention.default
SDPA = torch.ops.aten.scaled_dot_product_attention.default
LINEAR = torch.ops.aten.linear.default
PRODUCT = torch.ops.decodekit.float_gemm.default


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


class Repeats(torch.nn.Module):
    """Attention whose keys are repeated head by head, and values likewise or one after another."""

    def __init__(self, values_too):
        super().__init__()
        self.values_too = values_too

    def forward(self, query, keys, values, mask):
        values = repeat_kv(values, 2) if self.values_too else values.repeat(1, 2, 1, 1)
        return torch.nn.functional.scaled_dot_product_attention(query, repeat_kv(keys, 2), values, mask)


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

    @pytest.mark.parametrize("values_too", [True, False])
    def test_keys_and_values_have_as_many_groups(self, values_too):
        """Though a model repeats them in different orders, as DiffLlama did: the kernel reads both by one."""
        program = torch.export.export(
            Repeats(values_too),
            (
                torch.ones(1, 4, 3, 16),
                torch.ones(1, 2, 8, 16),
                torch.ones(1, 2, 8, 16),
                torch.zeros(1, 1, 3, 8),
            ),
        )
        rewrite_graph(program.graph_module, EveryInput())

        (node,) = program.graph_module.graph.find_nodes(op="call_function", target=ATTENTION)
        groups = [one.meta["val"].shape[1] for one in node.args[1:3]]
        assert groups == ([2, 2] if values_too else [4, 4])

    @pytest.mark.mostly_slow(every=5)
    @pytest.mark.parametrize("width", [1, 20])
    def test_own_kernels_attend_and_multiply(self, decoder, width):
        """Linear layers and torch's attention, over keys that are not repeated, at every width."""
        program, _ = exported(decoder, width)
        module = program.graph_module
        attentions, products = (
            len(module.graph.find_nodes(op="call_function", target=target)) for target in (SDPA, LINEAR)
        )

        rewrite_graph(module, EveryInput())

        mine = module.graph.find_nodes(op="call_function", target=ATTENTION)
        assert attentions == len(mine)
        keys = [node.args[1].meta["val"].shape[1] for node in mine]
        assert [buffer.shape[1] for buffer in decoder.cache.keys][: len(mine)] == keys
        assert products == len(module.graph.find_nodes(op="call_function", target=PRODUCT))


def test_products_that_are_left_to_torch_are_told(tiny_model):
    """All of them without kernels, or where a model multiplies otherwise than by a linear layer."""
    for name, kernels, left in [
        ("llama", NO_LIBRARY, (str(LINEAR), str(SDPA))),
        ("llama", EveryInput(), ()),
        ("gpt2", EveryInput(), ()),
        ("falcon", EveryInput(), ()),
        ("gemma2", EveryInput(), ("aten.matmul.default",)),
        ("mixtral", EveryInput(), ("transformers.grouped_mm_fallback.default",)),
    ]:
        decoder = StaticDecoder(tiny_model(name), batch_size=1, max_length=32, widths=(1, 5))
        program, _ = exported(decoder, 5)

        rewrite_graph(program.graph_module, kernels)

        assert set(left) == set(unproved_products(program.graph_module))


class EveryInput(NoLibrary):
    """Kernels that take every input, and only compiled programs can call."""

    def takes(self, dtype):
        return True


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
