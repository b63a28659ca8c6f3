"""The C++ kernels in csrc/, compiled for this CPU and one dtype."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import attrs
import torch
from torch import Tensor

from . import (
    kernel_operations as _operations,  # noqa: F401
    program_objects,
)

_CPP_TYPES = {torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}
_NAME = "decodekit_kernels"

_OPERATIONS = (
    torch.ops.decodekit.float_gemm.default,
    torch.ops.decodekit.int8_gemm.default,
    torch.ops.decodekit.int4_gemm.default,
    torch.ops.decodekit.attention.default,
)

SOURCE = Path(__file__).parent / "csrc" / "exports.cpp"
"""The file that is compiled, beside all that it includes."""

DTYPES = frozenset(_CPP_TYPES)
"""Dtypes of inputs, and of weights that are not quantised."""


def archiver() -> str:
    """The command that makes static archives."""
    return os.environ.get("AR", "ar")


class NoLibrary:
    """A :class:`Library` without kernels: torch's own multiply everything."""

    portable: ClassVar[bool] = False
    tiled: ClassVar[bool] = False

    def takes(self, dtype: torch.dtype) -> bool:
        """False for every dtype."""
        return False

    @contextmanager
    def linked(self) -> Iterator[dict[str, Any]]:
        """Context with AOTInductor options that link only what every program has."""
        with program_objects.linked() as options:
            yield options


NO_LIBRARY = NoLibrary()
"""The shared instance."""


@attrs.frozen(eq=False)
class Library:
    """
    Compiled kernels, in a temporary folder that is deleted with them.

    The methods take the inputs of the operations in :mod:`~.kernel_operations`, contiguous and unchecked.
    """

    folder: Path
    dtype: torch.dtype
    _code: Any
    portable: bool = False
    """Whether code for specific CPUs is left out."""

    tiled: bool = False
    """Whether bfloat16 is multiplied in AMX tiles, where the CPU has them."""

    @classmethod
    def compiled(cls, dtype: torch.dtype, *, portable: bool = False, tiled: bool = False) -> Self:
        """
        Compile the kernels. Takes some seconds.

        Args:
            dtype: One of :data:`DTYPES`.

            portable: Leave out code for specific CPUs.

            tiled: Multiply bfloat16 with AMX tiles if the CPU has them: slower for one row, and hardly
                slower for sixteen. Quantised weights use tiles wherever they are faster.

        Raises:
            RuntimeError: The compiler failed.
        """
        # Imported on demand: takes a second or two, and only compiling needs it.
        from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions

        folder = Path(tempfile.mkdtemp(prefix=_NAME))
        options = compiler_options(dtype, portable=portable, tiled=tiled)
        unlinked = CppBuilder(_NAME, [str(SOURCE)], options, str(folder))
        unlinked.build()
        compiled = unlinked.get_target_file_path()
        shared = CppBuilder(_NAME, [compiled], CppTorchOptions(vec_isa=_instructions()), str(folder))
        shared.build()
        archive = folder / "archive" / f"lib{_NAME}.a"
        archive.parent.mkdir()
        subprocess.run([archiver(), "rcs", archive, compiled], check=True, capture_output=True)
        code = ctypes.CDLL(shared.get_target_file_path())
        weakref.finalize(code, shutil.rmtree, folder, ignore_errors=True)
        return cls(folder, dtype, code, portable, tiled)

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether the kernels take inputs of *dtype*."""
        return dtype == self.dtype

    @contextmanager
    def linked(self) -> Iterator[dict[str, Any]]:
        """Context with AOTInductor options that link the kernels into the programs it compiles."""
        with program_objects.linked([self.folder / "archive"], [_NAME]) as options:
            yield {
                **options,
                "aot_inductor.custom_ops_to_c_shims": {
                    operation: [_declaration(operation)] for operation in _OPERATIONS
                },
            }

    def float_gemm(self, x: Tensor, weight: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.float_gemm`."""
        return self._called(self._code.decodekit_float_gemm, x, [weight], *weight.shape)

    def int8_gemm(self, x: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.int8_gemm`."""
        return self._called(self._code.decodekit_int8_gemm, x, [quantized, scale], *quantized.shape)

    def int4_gemm(self, x: Tensor, packed: Tensor, levels: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.int4_gemm`."""
        # The last dimension of packed is the block.
        sizes = (packed.shape[0], packed.shape[1], levels.shape[1])
        return self._called(self._code.decodekit_int4_gemm, x, [packed, levels], *sizes)

    def attention(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        """As :func:`~.kernel_operations.attention`."""
        batch, width, heads, key_dim = query.shape
        groups, slots, value_dim = values.shape[1:]
        y = query.new_empty(batch, width, heads, value_dim)
        strided = [
            argument
            for tensor in (keys, values, mask)
            for argument in (ctypes.c_void_p(tensor.data_ptr()), (ctypes.c_int64 * 3)(*tensor.stride()[:3]))
        ]
        counts = (batch, width, heads, groups, slots, key_dim, value_dim)
        self._code.decodekit_attention(
            ctypes.c_void_p(query.data_ptr()),
            *strided,
            ctypes.c_void_p(y.data_ptr()),
            *map(ctypes.c_int64, counts),
            ctypes.c_double(scale),
        )
        return y

    def _called(self, call: Any, x: Tensor, weights: Sequence[Tensor], *sizes: int) -> Tensor:
        *counts, outputs = sizes if len(sizes) == 3 else (*sizes, sizes[0])
        y = x.new_empty(x.shape[0], outputs)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, *weights, y)]
        call(ctypes.c_int64(x.shape[0]), *pointers, *map(ctypes.c_int64, counts))
        return y


def compiler_options(dtype: torch.dtype, *, portable: bool = False, tiled: bool = False) -> Any:
    """Inductor's options for compiling :data:`SOURCE`; arguments as of :meth:`Library.compiled`."""
    from torch._inductor.cpp_builder import CppTorchOptions, is_gcc

    definitions = [f"-DDECODEKIT_NUMBER={_CPP_TYPES[dtype]}"]
    if portable:
        definitions.append("-DDECODEKIT_PORTABLE")
    if tiled:
        definitions.append("-DDECODEKIT_TILED")
    if is_gcc():
        # Inductor's flags leave it out, since its own loops are vectorised explicitly.
        definitions.append("-ftree-loop-vectorize")
    return CppTorchOptions(vec_isa=_instructions(), compile_only=True, extra_flags=definitions)


def _instructions() -> Any:
    """Inductor's name for this CPU's vector instructions."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return pick_vec_isa()


def _declaration(operation: Any) -> str:
    """Declaration of the C function that a program calls for *operation*."""
    kinds = {"Tensor": "AtenTensorHandle", "float": "double"}
    inputs = "".join(f"{kinds[str(argument.type)]}, " for argument in operation._schema.arguments)
    return f"AOTITorchError aoti_torch_cpu_{operation._opname}({inputs}AtenTensorHandle*)"
