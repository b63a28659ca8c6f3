"""Rules for HLO: instructions and dtypes that neuronx-cc is known to refuse."""

import re
from collections.abc import Callable, Iterator

from .hlo_index_bounds import gathers_out_of_bounds, scatters_out_of_bounds
from .hlo_text import Computations, Instruction
from .rules import CODES, OPERATORS, Rule

# fmt: off
_CUSTOM_CALLS = {
    "AwsNeuronArgMax", "AwsNeuronArgMin", "AwsNeuronCollectiveMatmul", "AwsNeuronCustomNativeKernel",
    "AwsNeuronCustomOp", "AwsNeuronDevicePrint", "AwsNeuronDropoutMaskV1", "AwsNeuronErf", "AwsNeuronGelu",
    "AwsNeuronGeluApprxTanh", "AwsNeuronGeluBackward", "AwsNeuronIntMatmult",
    "AwsNeuronLNCShardingConstraint", "AwsNeuronModuleMarkerEnd-Backward",
    "AwsNeuronModuleMarkerEnd-Forward", "AwsNeuronModuleMarkerStart-Backward",
    "AwsNeuronModuleMarkerStart-Forward", "AwsNeuronRmsNorm", "AwsNeuronSilu", "AwsNeuronSiluBackward",
    "AwsNeuronSoftmax", "AwsNeuronSoftmaxBackward", "AwsNeuronTopK", "AwsNeuronTransferWithStaticRing",
    "NeuronBoundaryMarker-End", "NeuronBoundaryMarker-Start", "ResizeBilinear", "ResizeNearest",
    "ResizeNearestGrad",
}
# fmt: on


def _is(*names: str) -> Callable[[Instruction, Computations], bool]:
    return lambda instruction, _: instruction.op in names


def _begins_with(*dtypes: str) -> Callable[[Instruction, Computations], bool]:
    """Whether an instruction introduces one of *dtypes*: one finding, rather than one per descendant."""

    def enters(instruction: Instruction, _: Computations) -> bool:
        def held(text: str) -> bool:
            return any(re.search(rf"\b{dtype}\[", text) for dtype in dtypes)

        return held(instruction.shape) and not held(instruction.operands)

    return enters


def _is_open(instruction: Instruction, _: Computations) -> bool:
    dynamic = ("get-dimension-size", "set-dimension-size", "dynamic-reshape", "pad-to-static")
    return instruction.op in dynamic or bool(re.search(r"\[[^\]]*(?:<=|\?)", instruction.shape))


def _reduces_several(instruction: Instruction, _: Computations) -> bool:
    return instruction.op == "reduce" and instruction.shape.startswith("(")


def _dilates(name: str) -> Callable[[Instruction, Computations], bool]:
    """Whether a window is dilated: its factors are written as ``1x2``."""

    def dilated(instruction: Instruction, _: Computations) -> bool:
        factors = re.search(rf"\b{name}=([\dx]+)", instruction.attributes)
        windowed = instruction.op == "reduce-window"
        return windowed and factors is not None and any(int(one) > 1 for one in factors[1].split("x"))

    return dilated


def _has_several_windows(instruction: Instruction, _: Computations) -> bool:
    return instruction.op == "reduce-window" and len(instruction.operand_names) != 2


def _is_unknown_call(instruction: Instruction, _: Computations) -> bool:
    if instruction.op != "custom-call":
        return False
    target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return target is None or target[1] not in _CUSTOM_CALLS


def _is_integer(dtype: str) -> bool:
    return bool(re.fullmatch(r"[su]\d+|pred", dtype))


def _multiplies_integer_matrices(instruction: Instruction, _: Computations) -> bool:
    return instruction.op in ("dot", "convolution") and _is_integer(instruction.dtype)


def _called(instruction: Instruction, computations: Computations) -> Iterator[Instruction]:
    name = re.search(r"to_apply=%([\w.\-]+)", instruction.attributes)
    yield from computations.get(name[1], []) if name else []


def _scatters_integers_with_arithmetic(instruction: Instruction, computations: Computations) -> bool:
    return (
        instruction.op == "scatter"
        and _is_integer(instruction.dtype)
        and any(inner.is_root and inner.op != "parameter" for inner in _called(instruction, computations))
    )


def _reduces_integers_among_ranks(name: str) -> Callable[[Instruction, Computations], bool]:
    return lambda instruction, _: (
        instruction.op in (name, f"{name}-start") and bool(re.search(r"\b[su](?:32|64)\[", instruction.shape))
    )


def _raises_int64_to_a_power(instruction: Instruction, _: Computations) -> bool:
    return instruction.op == "power" and instruction.dtype in ("s64", "u64")


def _shifts_other_than_32_bits(instruction: Instruction, _: Computations) -> bool:
    return instruction.op == "shift-right-arithmetic" and instruction.dtype not in ("s32", "u32")


RULES = (
    Rule("open-shape", "NCC_EMOD025", "every dimension must be a number", f"{CODES}, EMOD025", _is_open),
    Rule(
        "sort",
        "NCC_EVRF029",
        "no sort; take torch.topk of floats, which torch_neuronx makes AwsNeuronTopK",
        "the compiler's own message; aws-neuron-sdk#868; AWS Neuron SDK, torch_neuronx.PartitionerConfig",
        _is("sort", "topk"),
    ),
    Rule(
        "variadic-reduce",
        "NCC_ISPP027",
        "no reduction of several operands, such as argmax; take amax, then the smallest index that has it",
        "AWS Neuron SDK, JAX known issues: variadic reductions are not supported",
        _reduces_several,
    ),
    Rule(
        "window-base-dilation",
        "NCC_EVRF017",
        "no window over a dilated input; dilate it beforehand",
        f"{CODES}, EVRF017",
        _dilates("lhs_dilate"),
    ),
    Rule(
        "window-dilation",
        "NCC_EVRF018",
        "no dilated window; dilate the input or take slices",
        f"{CODES}, EVRF018",
        _dilates("rhs_dilate"),
    ),
    Rule(
        "window-operands",
        "NCC_EVRF019",
        "no window over several inputs at once; reduce each by itself",
        f"{CODES}, EVRF019",
        _has_several_windows,
    ),
    Rule(
        "select-and-scatter",
        None,
        "no scatter to the extremes of windows",
        f"{OPERATORS}: no SelectAndScatter",
        _is("select-and-scatter"),
    ),
    Rule(
        "scatter-bounds",
        "NCC_EVRF031",
        "no iota longer than the dimension that a scatter indexes with it",
        f"{CODES}, EVRF031",
        scatters_out_of_bounds,
    ),
    Rule(
        "gather-bounds",
        "NCC_EVRF056",
        "no iota longer than the dimension that a gather indexes with it, such as positions beyond a table",
        f"{CODES}, EVRF056",
        gathers_out_of_bounds,
    ),
    Rule(
        "random",
        "NCC_EVRF006",
        "no random numbers in the graph; draw them on the host and pass them in",
        f"{CODES}, EVRF006; neuronx-distributed-inference, modules/generation/sampling.py: "
        "multinomial makes the trace hang",
        _is("rng", "rng-bit-generator", "rng-get-and-update-state"),
    ),
    Rule(
        "float64",
        None,
        "no float64; a Python float beside a tensor enters as one, so give a tensor",
        "AWS Neuron SDK, data types",
        _begins_with("f64"),
    ),
    Rule(
        "complex",
        "NCC_EVRF004",
        "no complex numbers; keep real and imaginary parts apart",
        f"{CODES}, EVRF004",
        _begins_with("c64", "c128"),
    ),
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
        "no scatter that computes on integers or booleans; accumulate in float32, exact below 2^24",
        f"{CODES}, EVRF016 and EVRF060",
        _scatters_integers_with_arithmetic,
    ),
    Rule(
        "integer-all-reduce",
        "NCC_EVRF061",
        "no sum of integers over ranks; cast them to float32, exact below 2^24",
        f"{CODES}, EVRF061",
        _reduces_integers_among_ranks("all-reduce"),
    ),
    Rule(
        "integer-reduce-scatter",
        "NCC_EVRF063",
        "no sum of integers over ranks; cast them to float32, exact below 2^24",
        f"{CODES}, EVRF063",
        _reduces_integers_among_ranks("reduce-scatter"),
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
        "an arithmetic shift takes 32 bits only; cast what is shifted to int32",
        f"{CODES}, EVRF022",
        _shifts_other_than_32_bits,
    ),
    Rule(
        "control-flow",
        None,
        "no branch and no loop; compute both sides and select, or unroll",
        f"{OPERATORS}: neither Conditional nor While",
        _is("while", "conditional"),
    ),
    Rule(
        "solver",
        "NCC_EVRF001",
        "no factorisation, triangular solve or Fourier transform; multiply with matrices",
        f"{CODES}, EVRF001 and EUOC002",
        _is("cholesky", "fft", "triangular-solve"),
    ),
    Rule(
        "custom-call",
        "NCC_EVRF015",
        "no custom call but the compiler's own",
        f"{CODES}, EVRF015, which lists them",
        _is_unknown_call,
    ),
    Rule(
        "host-transfer",
        None,
        "no transfers from or to the host while the program runs; make it an input or an output",
        f"{OPERATORS}: neither Infeed nor Outfeed, Send nor Recv",
        _is("infeed", "outfeed", "send", "recv"),
    ),
)
"""Every rule."""
