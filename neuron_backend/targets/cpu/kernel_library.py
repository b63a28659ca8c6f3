"""The C++, compiled for this processor, one dtype and the numbers of rows that a decoder has."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import attrs
import torch
from torch import Tensor

from . import kernel_operations as _operations  # noqa: F401

_NUMBERS = {torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}
_SOURCE = Path(__file__).parent / "csrc" / "calls.cpp"
_NAME = "decodekit_skinny_gemm"

_OPERATIONS = (
    torch.ops.decodekit.float_rows.default,
    torch.ops.decodekit.int8_rows.default,
    torch.ops.decodekit.int4_rows.default,
    torch.ops.decodekit.attention.default,
)

DTYPES = frozenset(_NUMBERS)
"""Of inputs: those of layers whose weights are floats have it too."""

MOST_ROWS = 16
"""Of more, multiplying takes longer than reading the weights, and oneDNN is the quicker at that."""

MOST_ROWS_BY_4_BITS = 64
"""What is quicker at more has to make the weights wide before, which takes as long as this multiplies."""


def archiver() -> str:
    """The command that makes static archives."""
    return os.environ.get("AR", "ar")


class NoLibrary:
    """What stands in for a :class:`Library` where torch's own kernels multiply everything."""

    def takes(self, x: Tensor, most: int = MOST_ROWS) -> bool:
        """No input."""
        return False

    @contextmanager
    def linked(self) -> Iterator[dict[str, Any]]:
        """No options."""
        yield {}


NO_LIBRARY = NoLibrary()
"""The only one that is needed."""


@attrs.frozen(eq=False)
class Library:
    """
    Compiled code, in a folder of its own that goes with it.

    Its calls take what the operations of :mod:`~.kernel_operations` take, contiguous, and check nothing.
    """

    folder: Path
    dtype: torch.dtype
    rows: tuple[int, ...]
    _code: Any

    @classmethod
    def compiled(
        cls, dtype: torch.dtype, rows: Sequence[int], *, portable: bool = False, tiled: bool = False
    ) -> Self:
        """
        Compile. Takes some seconds.

        Args:
            dtype: One of :data:`DTYPES`.

            rows: That are multiplied, each number.

            portable: Leave out what is written for one kind of processor.

            tiled: Multiply bfloat16 by tiles, where the processor has them: slower for one row, and hardly
                slower for sixteen. Weights in fewer bits are multiplied so wherever it is the quicker.

        Raises:
            RuntimeError: The compiler refused.
        """
        # Takes a second or two, and only who compiles needs it.
        from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions, is_gcc
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        definitions = [
            f"-DDECODEKIT_NUMBER={_NUMBERS[dtype]}",
            f"-DDECODEKIT_ROWS={','.join(map(str, rows))}",
        ]
        if portable:
            definitions.append("-DDECODEKIT_PORTABLE")
        if tiled:
            definitions.append("-DDECODEKIT_TILED")
        if is_gcc():
            # The flags for a program's own loops, which say what is a vector, leave it out.
            definitions.append("-ftree-loop-vectorize")
        folder = Path(tempfile.mkdtemp(prefix=_NAME))
        isa = pick_vec_isa()
        options = CppTorchOptions(vec_isa=isa, compile_only=True, extra_flags=definitions)
        unlinked = CppBuilder(_NAME, [str(_SOURCE)], options, str(folder))
        unlinked.build()
        compiled = unlinked.get_target_file_path()
        shared = CppBuilder(_NAME, [compiled], CppTorchOptions(vec_isa=isa), str(folder))
        shared.build()
        archive = folder / "archive" / f"lib{_NAME}.a"
        archive.parent.mkdir()
        subprocess.run([archiver(), "rcs", archive, compiled], check=True, capture_output=True)
        code = ctypes.CDLL(shared.get_target_file_path())
        weakref.finalize(code, shutil.rmtree, folder, ignore_errors=True)
        return cls(folder, dtype, tuple(rows), code)

    def takes(self, x: Tensor, most: int = MOST_ROWS) -> bool:
        """Whether an input, ``[rows, in]``, is one that this is for, of up to *most* rows."""
        return x.dtype == self.dtype and x.shape[0] in self.rows and x.shape[0] <= most

    @contextmanager
    def linked(self) -> Iterator[dict[str, Any]]:
        """Options for AOTInductor, with which the programs that it compiles meanwhile hold the code."""
        before = os.environ.get("LIBRARY_PATH")
        paths = [str(self.folder / "archive"), *([before] if before else [])]
        os.environ["LIBRARY_PATH"] = os.pathsep.join(paths)
        try:
            yield {
                "aot_inductor.custom_op_libs": [_NAME],
                "aot_inductor.custom_ops_to_c_shims": {
                    operation: [_declaration(operation)] for operation in _OPERATIONS
                },
            }
        finally:
            if before is None:
                del os.environ["LIBRARY_PATH"]
            else:
                os.environ["LIBRARY_PATH"] = before

    def float_rows(self, x: Tensor, weight: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.float_rows`."""
        return self._called(self._code.decodekit_float_rows, x, [weight], *weight.shape)

    def int8_rows(self, x: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.int8_rows`."""
        return self._called(self._code.decodekit_int8_rows, x, [quantized, scale], *quantized.shape)

    def int4_rows(self, x: Tensor, packed: Tensor, levels: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.int4_rows`."""
        sizes = (packed.shape[0], packed.shape[1], levels.shape[1])
        return self._called(self._code.decodekit_int4_rows, x, [packed, levels], *sizes)

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
        call.restype = ctypes.c_bool
        if not call(ctypes.c_int64(x.shape[0]), *pointers, *map(ctypes.c_int64, counts)):
            raise ValueError(f"the rows must be one of {list(self.rows)}: got {x.shape[0]}")
        return y


def _declaration(operation: Any) -> str:
    """Of the C function that a program calls for *operation*."""
    kinds = {"Tensor": "AtenTensorHandle", "float": "double"}
    inputs = "".join(f"{kinds[str(argument.type)]}, " for argument in operation._schema.arguments)
    return f"AOTITorchError aoti_torch_cpu_{operation._opname}({inputs}AtenTensorHandle*)"
