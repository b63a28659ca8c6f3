"""
Compiling and running CPU programs with AOTInductor.

A program holds no weights: it is given the decoder's tensors and writes to the decoder's cache, so
programs of several widths share both. It does not check its inputs; the decoder does before the call.
"""

import copy
import tempfile
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...artifacts.fingerprint import tensors_digest
from ...artifacts.packages import Package
from ...kv_cache.buffers import CacheBuffers
from ...lowering.complex_pairs import pair_complex_numbers
from ...lowering.export import name_of, without_known_warnings
from ...models.fused_projections import merge_equal_products, trace_fused
from ...step import Step, tensors_of
from .graph_rewrites import rewrite_graph
from .kernel_description import describe_kernels, is_bit_exact, kernel_metadata
from .kernel_library import NO_LIBRARY, Library, NoLibrary
from .traced_kernels import traced_kernels
from .vector_instructions import vector_bits

FINGERPRINT = "decodekit_fingerprint"
"""Name of a program's fingerprint in its metadata."""

CONSTANTS = "decodekit_constants"
"""Name of the digest of a program's own constants in its metadata."""

_SMALLEST_CHUNK = 1 << 14
"""Numbers below which a loop runs in one thread, where no norm is wide."""

_NORM_SUMS = ("layer_norm", "mean", "native_layer_norm", "rms_norm", "std", "var", "var_mean")


def loop_options(*graphs: GraphModule) -> dict[str, Any]:
    """Settings with which Inductor's loops round a column of *graphs* alike at any width and threads."""
    return {
        # Round after each operation, as eager does. Fused loops round where the compiler ends them, which
        # depends on the width, so that a column's logits would differ in a verification.
        "emulate_precision_casts": True,
        # Numbers below which a loop runs in one thread. Inductor would divide the sums over few rows among
        # threads, and so round them otherwise than beside other rows. It does so where there are fewer than
        # a 300th as many rows as vectors in one, and vectors have 4 numbers at least.
        "cpp.min_chunk_size": max(_SMALLEST_CHUNK, max(map(_widest_norm, graphs)) ** 2 // (2 * 300 * 4) + 1),
        # Loops that are divided keep a partial result for each thread. Left open, they would have as many
        # threads as there are when they run, and as many results as there were when they were compiled.
        "cpp.threads": torch.get_num_threads(),
        # A sum of few numbers, such as of a token's experts, is a loop. Inductor would write it out where
        # there are several of them, which adds in another order; and take another sum for their variances.
        "unroll_reductions_threshold": 1,
        "cpp.use_two_step_variance_threshold": 0,
        # Inductor keeps loops for all processors that share a cache folder, by these settings alone, and the
        # width of a vector stands in their code.
        "cpp.simdlen": vector_bits(),
    }


def _widest_norm(graph: GraphModule) -> int:
    """The most numbers that a norm in *graph* sums."""
    nodes = [node for node in graph.graph.nodes if node.op == "call_function" and name_of(node) in _NORM_SUMS]
    inputs = (node.all_input_nodes[0].meta.get("val") for node in nodes)
    return max(
        (int(value.shape[-1]) for value in inputs if isinstance(value, Tensor) and value.ndim), default=0
    )


def compile_package(
    step: Step,
    cache: CacheBuffers,
    width: int,
    spans: Sequence[int],
    fingerprint: str,
    kernels: Library | NoLibrary = NO_LIBRARY,
) -> Package:
    """
    Compile *step* for one width and every span. Takes seconds to minutes.

    The program is not said to be bit-exact: its loops over single numbers round functions otherwise than
    those over vectors, and which it has depends on the width.

    Args:
        step: The step to compile.

        cache: Defines batch size and shapes; not written.

        width: Columns of the program.

        spans: Numbers of positions that it may attend to. One CPU program serves all of them, unlike
            on a device of fixed shapes.

        fingerprint: Fingerprint of what the program fits, kept in its metadata for
            :class:`CompiledProgram`.

        kernels: Kernels that are linked into the program, for the inputs that they take.
    """
    # Imported on demand: takes a second or two, and only compiling needs it.
    from torch._inductor import aoti_compile_and_package, config

    with (
        torch.no_grad(),
        without_known_warnings(),
        tempfile.TemporaryDirectory() as folder,
        kernels.linked() as linked,
        traced_kernels(step, kernels),
        trace_fused(step),
    ):
        inputs = step.padding(width, cache, spans[0])
        exported = torch.export.export(
            step, inputs, strict=False, dynamic_shapes=open_span(step, inputs, cache, spans)
        )
        merge_equal_products(exported.graph_module, exported.graph_signature.user_inputs)
        rewrite_graph(exported.graph_module, kernels)
        # Otherwise the compiler falls back to one call per complex operation, and warns.
        pair_complex_numbers(exported.graph_module)
        known = tensors_of(step)
        constants = {name: tensor for name, tensor in exported.constants.items() if name not in known}
        options = {
            "aot_inductor.package_constants_in_so": False,
            # The compiler keeps those in a known folder among everyone's temporary files, whatever its cache,
            # and runs openssl to name them.
            "aot_inductor.precompile_headers": False,
            **loop_options(exported.graph_module),
            "aot_inductor.metadata": {
                FINGERPRINT: fingerprint,
                CONSTANTS: tensors_digest(constants),
                **kernel_metadata(
                    exported.graph_module.graph.nodes,
                    step.model.dtype,
                    tiled=kernels.tiled,
                    limit=kernels.limit,
                ),
            },
            **linked,
        }
        # Not in the compiler's cache, where another process that compiles the same program would
        # overwrite the files while they are packaged.
        with config.patch({"aot_inductor.output_path": str(Path(folder) / "compiled")}):
            path = aoti_compile_and_package(
                exported, package_path=str(Path(folder) / "program.pt2"), inductor_configs=options
            )
        content = Path(path).read_bytes()
    return Package(content, constants)


def open_span(step: Step, inputs: Sequence[Tensor], cache: CacheBuffers, spans: Sequence[int]) -> Any:
    """The dynamic dimension of a step's inputs: the number of slots attended to."""
    if len(spans) == 1:
        return None
    slots = torch.export.Dim("slots", min=2, max=cache.reserved + spans[-1])
    others = len(inputs) - len(cache.tensors) - 1
    flat = [*[None] * others, {0: slots}, *[None] * len(cache.tensors)]
    # ``*rest`` of a forward is one argument.
    named = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in signature(step.forward).parameters.values())
    return (*flat[:named], tuple(flat[named:]))


class CompiledProgram:
    """A loaded program over a decoder's weights and cache; a :class:`~...program_facts.KnowsKernels`."""

    def __init__(
        self,
        package: Package,
        tensors: Mapping[str, Tensor],
        cache: CacheBuffers,
        fingerprint: str,
    ):
        """
        Load native code, which the caller must trust.

        Args:
            package: The code and its own constants.

            tensors: The other tensors by name, as :func:`~...step.tensors_of` the
                compiled step.

            cache: The cache that it writes to.

            fingerprint: The fingerprint that it must have.

        Raises:
            ValueError: The program has another fingerprint, or other constants.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.pt2"
            path.write_bytes(package.content)
            # The loader in torch._inductor would import the compiler.
            self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
        metadata = self._loader.get_metadata()
        check_program(metadata, package, tensors, fingerprint)
        self.kernels, self.bit_exact = describe_kernels(metadata), is_bit_exact(metadata)
        # The program keeps pointers, so the tensors have to outlive it.
        self._tensors = named_tensors(self._loader.get_constant_fqns(), {**tensors, **package.constants})
        self._loader.load_constants(self._tensors, False, True, True)
        self._cache = cache.tensors

    def over(self, cache: CacheBuffers) -> "CompiledProgram":
        """The program over another *cache* of the same shapes."""
        other = copy.copy(self)
        other._cache = cache.tensors
        return other

    def __call__(self, *inputs: Tensor) -> Any:
        """Run on the step's checked inputs without the cache; return logits, or sampled tokens and logits."""
        # A program ignores the strides of its inputs.
        outputs = self._loader.run([*(tensor.contiguous() for tensor in inputs), *self._cache])
        return tuple(outputs) if len(outputs) > 1 else outputs[0]


def check_program(
    metadata: Mapping[str, str], package: Package, tensors: Mapping[str, Tensor], fingerprint: str
) -> None:
    """Refuse a program of other *metadata*; the rest as of :class:`CompiledProgram`."""
    found = metadata.get(FINGERPRINT)
    if found != fingerprint:
        raise ValueError(
            "a program must have been compiled for the decoder's shape, dtype and weights: its "
            f"fingerprint must be {fingerprint}: got {found}"
        )
    if metadata.get(CONSTANTS) != tensors_digest(package.constants) or not tensors.keys().isdisjoint(
        package.constants
    ):
        raise ValueError(
            "a program's own constants must be those that it was compiled with, apart from the model's "
            f"weights: got others, among {sorted(package.constants)}"
        )


def named_tensors(names: Sequence[str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of *tensors* that a program reads by *names*; ``ValueError`` if one is missing."""
    missing = [name for name in names if name not in tensors]
    if missing:
        raise ValueError(f"the model must have every weight that the program uses: got none named {missing}")
    return {name: tensors[name].detach() for name in names}
