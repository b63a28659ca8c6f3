"""Export of a module to a graph in core ATen operations, with the rewrites that compilers need."""

import contextlib
import warnings
from collections.abc import Callable, Container, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from .complex_pairs import pair_complex_numbers
from .top_k_form import canonicalize_top_k

COMPARISONS = (
    torch.ops.aten.eq,
    torch.ops.aten.ge,
    torch.ops.aten.gt,
    torch.ops.aten.le,
    torch.ops.aten.lt,
    torch.ops.aten.ne,
)

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

# Constant fills: compilers broadcast them from a number, a buffer would be stored in full.
_FILLS = {"empty", "full", "ones", "scalar_tensor", "zeros"}


@contextlib.contextmanager
def without_known_warnings() -> Iterator[None]:
    """Ignore known warnings of torch's own export and compilation."""
    with warnings.catch_warnings():
        # torch 2.13 uses two of its own deprecated functions.
        warnings.filterwarnings("ignore", r"`torch\.jit\.script_method` is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        # On a GPU: float32 is meant, and the code that Inductor generates is not ours.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        warnings.filterwarnings("ignore", r"\s*Online softmax is disabled", UserWarning)
        warnings.filterwarnings("ignore", r"tl\.where with a non-boolean condition", UserWarning)
        yield


def lower(module: nn.Module, inputs: tuple[Any, ...]) -> GraphModule:
    """
    Export *module* for the shapes of *inputs*, in core ATen operations.

    Constants are folded into buffers: ``arange`` alone would cost a float64 division at every call. A Python
    float that a tensor is compared with becomes a tensor of the dtype of the comparison; compilers would
    read it as float64. Complex numbers become pairs of real ones, and top-k takes the form that Neuron's
    compiler supports.

    Args:
        module: Its shapes and control flow must not depend on data.

        inputs: Arguments of its ``forward``; only their shapes and dtypes matter.

    Returns:
        A module with the same arguments, to be moved to a device, compiled or linted. It shares the
        parameters.
    """
    with torch.no_grad(), without_known_warnings():
        program = torch.export.export(module, inputs, strict=False)
        table = dict(torch.export.default_decompositions())
        # Kept whole, since compilers' own decompositions go through float64.
        table.pop(torch.ops.aten.index_copy.default, None)
        table[_ATTENTION] = _laid_out_as_the_kernel_does(table[_ATTENTION])
        program = program.run_decompositions(table)
        lowered = program.module()
    assert isinstance(lowered, GraphModule)
    drop_checks(lowered)
    _drop_whole_copies(lowered)
    _compare_with_tensors(lowered)
    pair_complex_numbers(lowered)
    canonicalize_top_k(lowered)
    fold_constants(lowered, set(program.graph_signature.lifted_tensor_constants))
    return lowered


def _drop_whole_copies(module: GraphModule) -> None:
    """Remove copies over a whole tensor of the same shape, dtype and layout: passes over the cache."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy.default):
        over, copied = (one.meta["val"] for one in node.args[:2])
        # Later views were traced for the layout of the tensor that is copied to.
        if (over.shape, over.dtype, over.stride()) == (copied.shape, copied.dtype, copied.stride()):
            node.replace_all_uses_with(node.args[1])
            module.graph.erase_node(node)


def _laid_out_as_the_kernel_does(attention: Callable[..., Any]) -> Callable[..., Any]:
    """
    PyTorch's decomposition of the CPU's attention, with the output strides of the operation itself.

    Those are of ``[batch, width, heads, head_dim]``, and the next operation may have been traced as a view of
    that (as GPT-2's projection is). The decomposition has width before batch, which is equivalent only if
    either is 1.
    """

    def decomposition(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        attended, weights = attention(*args, **kwargs)
        return attended.transpose(1, 2).contiguous().transpose(1, 2), weights

    return decomposition


def fold_constants(module: GraphModule, known: Container[str] = ()) -> None:
    """
    Evaluate what depends on no input, parameter or buffer, and store it as buffers.

    Random operations are left in place, so that lint reports them instead of freezing one draw.

    Args:
        module: Changed in place.

        known: Names of its tensors that are constants rather than parameters.
    """
    constants: dict[Node, Tensor] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and node.target in known:
            # It may be in a submodule.
            constants[node] = attrgetter(node.target)(module)
        elif _is_constant(node, constants):
            arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: constants[source])
            constants[node] = node.target(*arguments[0], **arguments[1])
    for number, (node, value) in enumerate(constants.items()):
        if node.op == "call_function" and any(user not in constants for user in node.users):
            _replace(module, node, f"_folded_{number}", value)
    module.graph.eliminate_dead_code()
    module.recompile()


def drop_checks(module: GraphModule) -> None:
    """Remove input guards and metadata assertions, which are not part of the computation."""
    checks = (
        ("call_module", "_guards_fn"),
        ("call_function", torch.ops.aten._assert_tensor_metadata.default),
    )
    for op, target in checks:
        for node in module.graph.find_nodes(op=op, target=target):
            module.graph.erase_node(node)
    module.delete_all_unused_submodules()


def _compare_with_tensors(module: GraphModule) -> None:
    for overloads in COMPARISONS:
        for node in module.graph.find_nodes(op="call_function", target=overloads.Scalar):
            other = node.args[1]
            if isinstance(other, float):
                with module.graph.inserting_before(node):
                    constant = _scalar(
                        module.graph, other, torch.result_type(node.args[0].meta["val"], other)
                    )
                node.target, node.args = overloads.Tensor, (node.args[0], constant)


def _scalar(graph: Graph, value: float, dtype: torch.dtype) -> Node:
    node = graph.call_function(torch.ops.aten.scalar_tensor.default, (value,), {"dtype": dtype})
    node.meta["val"] = torch.empty((), dtype=dtype, device="meta")
    return node


def name_of(node: Node) -> str:
    """An operation's name without namespace and overload: ``"sort"`` for ``aten.sort.stable``."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def _is_constant(node: Node, constants: dict[Node, Tensor]) -> bool:
    return (
        node.op == "call_function"
        and isinstance(node.meta.get("val"), Tensor)
        and all(source in constants for source in node.all_input_nodes)
        and torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
    )


def _replace(module: GraphModule, node: Node, name: str, value: Tensor) -> None:
    # A fill is stored as one number, which the graph expands.
    fills = name_of(node) in _FILLS and value.numel() > 1
    module.register_buffer(name, value.flatten()[0].clone() if fills else value)
    with module.graph.inserting_before(node):
        folded = module.graph.get_attr(name)
        if fills:
            folded.meta["val"] = node.meta["val"].flatten()[0]
            folded = module.graph.call_function(torch.ops.aten.expand.default, (folded, list(value.shape)))
    folded.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(folded)
