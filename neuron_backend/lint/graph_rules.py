"""Rules for exported graphs: operations, dtypes and forms that neuronx-cc is known to refuse."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..lowering.export import COMPARISONS, name_of
from .index_bounds import reads_out_of_bounds, writes_out_of_bounds
from .rules import CODES, OPERATORS, TORCH_NEURON, Rule

WIDEST_TOP_K = 16_384
"""Largest number of columns for which a top-k is known to compile at any usual k."""

_MLIR = "measured with torch-mlir 20261001, TorchNeuron's front end"
_FORK = "field notes of a vLLM fork for Neuron (tools/check_neuron_op_divergences.py)"


GraphRule = Rule[Callable[[Node], bool]]
"""A rule for one node."""


def _calls(*names: str) -> Callable[[Node], bool]:
    return lambda node: node.op == "call_function" and name_of(node) in names


def _tagged(node: Node, *tags: torch.Tag) -> bool:
    return not set(tags).isdisjoint(getattr(node.target, "tags", ()))


def _values(node: Node) -> Iterator[Tensor]:
    """The output tensors of a node, without their data."""
    value = node.meta.get("val")
    for one in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(one, Tensor):
            yield one


def _inputs(node: Node) -> Iterator[Tensor]:
    for source in node.all_input_nodes:
        yield from _values(source)


def _holds_integers(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def _begins_with(*dtypes: torch.dtype) -> Callable[[Node], bool]:
    """Whether a node introduces one of *dtypes*: one finding, rather than one per descendant."""
    return lambda node: (
        any(value.dtype in dtypes for value in _values(node))
        and not any(value.dtype in dtypes for value in _inputs(node))
    )


def _argument(node: Node, index: int, name: str, default: Any) -> Any:
    if name in node.kwargs:
        return node.kwargs[name]
    return node.args[index] if len(node.args) > index else default


def _is_top_k_of_another_form(node: Node) -> bool:
    if not _calls("topk")(node):
        return False
    (operand,) = _inputs(node)
    two_dimensions_along_the_last = operand.dim() == 2 and _argument(node, 2, "dim", -1) in (-1, 1)
    largest, ordered = _argument(node, 3, "largest", True), _argument(node, 4, "sorted", True)
    return not (two_dimensions_along_the_last and largest and ordered)


def _is_wide_top_k(node: Node) -> bool:
    if not _calls("topk")(node):
        return False
    (operand,) = _inputs(node)
    return bool(operand.shape[_argument(node, 2, "dim", -1)] > WIDEST_TOP_K)


def _is_top_k_of_integers(node: Node) -> bool:
    return _calls("topk")(node) and any(_holds_integers(value) for value in _inputs(node))


def _finds_an_extreme_with_its_index(node: Node) -> bool:
    both = (torch.ops.aten.max.dim, torch.ops.aten.min.dim)
    return node.target in both or _calls("argmax", "argmin", "cummax", "cummin")(node)


def _is_random(node: Node) -> bool:
    return _tagged(node, torch.Tag.nondeterministic_seeded) and not _drops_nothing(node)


def _drops_nothing(node: Node) -> bool:
    """Whether *node* is an attention, which torch calls random, without dropout."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    if "dropout_p" not in names:
        return False
    return bool(_argument(node, names.index("dropout_p"), "dropout_p", 0.0) == 0.0)


def _has_a_shape_from_data(node: Node) -> bool:
    if _calls("index", "index_put", "_unsafe_index", "_unsafe_index_put")(node):
        indices: Any = node.args[1]
        return any(v.dtype == torch.bool for i in indices if i is not None for v in _values(i))
    return _tagged(node, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


def _is_an_input_of_open_shape(node: Node) -> bool:
    value = node.meta.get("val")
    open_shape = isinstance(value, Tensor) and any(not isinstance(size, int) for size in value.shape)
    return node.op == "placeholder" and (open_shape or isinstance(value, torch.SymInt))


def _compares_with_a_float(node: Node) -> bool:
    compares = getattr(node.target, "overloadpacket", None) in COMPARISONS
    return compares and isinstance(node.args[1], float)


def _divides_integers(node: Node) -> bool:
    rounds = _calls("floor_divide", "remainder", "fmod")(node) or (
        _calls("div")(node) and node.kwargs.get("rounding_mode") is not None
    )
    return rounds and any(_holds_integers(value) for value in _values(node))


def _multiplies_integer_matrices(node: Node) -> bool:
    products = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "matmul", "einsum")
    return _calls(*products)(node) and any(_holds_integers(value) for value in _values(node))


def _scatters_integers_with_arithmetic(node: Node) -> bool:
    computes = _calls("scatter_add", "scatter_reduce", "index_add", "index_reduce")(node)
    if _calls("scatter")(node):
        computes = "reduce" in node.kwargs
    if _calls("index_put", "_unsafe_index_put")(node):
        computes = _argument(node, 3, "accumulate", False)
    return computes and any(_holds_integers(value) for value in _values(node))


def _flattens_to_write(node: Node) -> bool:
    # Others are found by these rules already.
    known = _has_a_shape_from_data(node) or _scatters_integers_with_arithmetic(node)
    return _calls("index_put", "_unsafe_index_put")(node) and not known


def _raises_int64_to_a_power(node: Node) -> bool:
    return _calls("pow")(node) and any(value.dtype == torch.int64 for value in _values(node))


def _shifts_other_than_32_bits(node: Node) -> bool:
    shifts = _calls("__rshift__", "bitwise_right_shift")(node)
    return shifts and any(value.dtype not in (torch.int32, torch.uint32) for value in _values(node))


def _moves_to_a_device(node: Node) -> bool:
    target: Any = node.kwargs.get("device")
    return _calls("device_put")(node) or (
        _calls("_to_copy")(node)
        and target is not None
        and any(value.device != torch.device(target) for value in _inputs(node))
    )


TRACED_RULES: tuple[GraphRule, ...] = (
    Rule(
        "sort",
        "NCC_EVRF029",
        "no sort, nor what is made of one; take torch.topk of floats",
        "the compiler's own message; aws-neuron-sdk#868; AWS Neuron SDK, torch_neuronx.PartitionerConfig",
        _calls("sort", "argsort", "msort", "kthvalue", "median", "nanmedian", "mode"),
    ),
    Rule(
        "top-k-form",
        "NCC_EVRF029",
        "only a top-k of two dimensions, along the last, largest and sorted, is known as one; "
        "any other becomes a sort",
        "AWS Neuron SDK, the lowering to AwsNeuronTopK",
        _is_top_k_of_another_form,
    ),
    Rule(
        "top-k-width",
        None,
        f"rows wider than {WIDEST_TOP_K:,} compile for the smallest k only; "
        "take the top-k of pieces, then of their survivors",
        "field note for trn2, neuronx-cc 2.26",
        _is_wide_top_k,
    ),
    Rule(
        "top-k-of-integers",
        "NCC_EVRF013",
        "no top-k of integers; cast them to floats",
        f"{CODES}, EVRF013",
        _is_top_k_of_integers,
    ),
    Rule(
        "argmax",
        "NCC_ISPP027",
        "no reduction of several operands; take amax, then the smallest index that has it",
        "AWS Neuron SDK, JAX known issues: variadic reductions are not supported",
        _finds_an_extreme_with_its_index,
    ),
    Rule(
        "random",
        None,
        "no random numbers in the graph; draw them on the host and pass them in",
        "neuronx-distributed-inference, modules/generation/sampling.py: multinomial makes the trace hang",
        _is_random,
    ),
    Rule(
        "float64",
        None,
        "no float64; cast to float32 before the graph",
        f"{_FORK}; AWS Neuron SDK, data types",
        _begins_with(torch.float64),
    ),
    Rule(
        "complex",
        "NCC_EVRF004",
        "no complex numbers; keep real and imaginary parts apart",
        f"{CODES}, EVRF004",
        _begins_with(torch.complex32, torch.complex64, torch.complex128),
    ),
    Rule(
        "float-comparison",
        None,
        "a Python float to compare with enters as float64; compare with a tensor",
        f"{_FORK}; {_MLIR}",
        _compares_with_a_float,
    ),
    Rule(
        "integer-division",
        None,
        "floor division and remainder of integers go through float64; compute them beforehand",
        f"{_FORK}; {_MLIR}",
        _divides_integers,
    ),
    Rule(
        "arange",
        None,
        "the number of steps is divided out in float64; make it a buffer",
        _MLIR,
        _calls("arange"),
    ),
    Rule(
        "variance",
        None,
        "a variance is summed in float64; take the mean of squared differences",
        _MLIR,
        _calls("var", "std", "var_mean", "std_mean"),
    ),
    Rule(
        "scatter-bounds",
        "NCC_EVRF031",
        "no fixed index beyond the dimension that is written",
        f"{CODES}, EVRF031",
        writes_out_of_bounds,
    ),
    Rule(
        "gather-bounds",
        "NCC_EVRF056",
        "no fixed index beyond the dimension that is read, such as positions beyond a table",
        f"{CODES}, EVRF056",
        reads_out_of_bounds,
    ),
    Rule("cumprod", None, "not lowered at all; take the sum of logarithms", _MLIR, _calls("cumprod")),
    Rule("unfold", None, "not lowered at all; stack slices", _MLIR, _calls("unfold")),
    Rule(
        "integer-dot",
        "NCC_EVRF035",
        "no product of integer matrices; cast them to float32, exact below 2^24",
        f"{CODES}, EVRF035",
        _multiplies_integer_matrices,
    ),
    Rule(
        "integer-scatter",
        "NCC_EVRF060",
        "no scatter that computes on integers; accumulate in float32, exact below 2^24",
        f"{CODES}, EVRF016 and EVRF060",
        _scatters_integers_with_arithmetic,
    ),
    Rule(
        "int64-power",
        "NCC_EVRF062",
        "no power of int64; multiply, or cast",
        f"{CODES}, EVRF062",
        _raises_int64_to_a_power,
    ),
    Rule(
        "shift",
        "NCC_EVRF022",
        "a right shift takes 32 bits only; cast what is shifted to int32, or divide",
        f"{CODES}, EVRF022",
        _shifts_other_than_32_bits,
    ),
    Rule(
        "shape-from-data",
        "NCC_EMOD025",
        "no shape and no number that depends on data; take torch.where over a fixed shape",
        f"{CODES}, EMOD025",
        _has_a_shape_from_data,
    ),
    Rule(
        "open-shape",
        "NCC_EMOD025",
        "every dimension of an input must be a number when the graph is made",
        f"{CODES}, EMOD025",
        _is_an_input_of_open_shape,
    ),
    Rule(
        "control-flow",
        None,
        "no branch and no loop; compute both sides and select, or unroll",
        f"{OPERATORS}: neither Conditional nor While",
        _calls("cond", "while_loop", "scan"),
    ),
    Rule(
        "device-move",
        None,
        "no move between devices; make everything where it is used",
        _FORK,
        _moves_to_a_device,
    ),
    Rule(
        "triangular-solve",
        "NCC_EVRF001",
        "no triangular solve; multiply with the inverse",
        f"{CODES}, EVRF001",
        _calls("triangular_solve", "linalg_solve_triangular"),
    ),
    Rule(
        "copysign",
        None,
        "becomes a custom call that is not known; take where and abs",
        _FORK,
        _calls("copysign"),
    ),
)
"""Rules for every compiler."""

RULES: tuple[GraphRule, ...] = (
    *TRACED_RULES,
    Rule(
        "index-put",
        None,
        "flattens the whole tensor and computes an address for each element written; take scatter along one "
        "dimension",
        f"{TORCH_NEURON}, index_put_decomposition",
        _flattens_to_write,
    ),
)
"""Every rule: also for what TorchNeuron's decompositions replace, before its compiler."""
