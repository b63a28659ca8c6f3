"""The C++ kernels in csrc/, compiled for this CPU and one dtype."""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import attrs
import torch
from torch import Tensor

from . import program_objects
from .instruction_limit import Limit
from .kept_objects import compiled_object, shared_library
from .kernel_calls import Argument, Ids, KernelCalls
from .kernel_operations import SHAPES
from .vector_instructions import vector_instructions

_CPP_TYPES = {torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}
_NAME = "decodekit_kernels"

SOURCE = Path(__file__).parent / "csrc" / "exports.cpp"
"""The file that is compiled, beside all that it includes."""

DTYPES = frozenset(_CPP_TYPES)
"""Dtypes of inputs, and of weights that are not quantised."""


def archiver() -> str:
    """The command that makes static archives."""
    return os.environ.get("AR", "ar")


class Kernels(Protocol):
    """What tracing and rewriting a graph need to know of kernels."""

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether the kernels take inputs of *dtype*."""
        ...


@attrs.frozen
class KernelDtypes:
    """The inputs that kernels take: known before they are compiled."""

    dtype: torch.dtype

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether the kernels take inputs of *dtype*."""
        return dtype == self.dtype and dtype in DTYPES


class NoLibrary:
    """A :class:`Library` without kernels: torch's own multiply everything."""

    tiled: ClassVar[bool] = False
    limit: ClassVar[Limit] = "portable"

    objects: ClassVar[tuple[Path, ...]] = ()

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
class Library(KernelCalls):
    """Compiled kernels."""

    object_file: Path
    """The object file."""

    dtype: torch.dtype
    _code: Any
    tiled: bool = False
    """Whether bfloat16 is multiplied in AMX tiles, where the CPU has them."""

    limit: Limit = "amx"
    """The most that they may use."""

    @classmethod
    def compiled(cls, dtype: torch.dtype, *, tiled: bool = False, limit: Limit = "amx") -> Self:
        """
        Compile the kernels. Takes some seconds.

        Args:
            dtype: One of :data:`DTYPES`.

            tiled: Multiply bfloat16 with AMX tiles if the CPU has them: slower for one row, and hardly
                slower for sixteen. Quantised weights use tiles wherever they are faster.

            limit: The most instructions to use; ``"portable"`` leaves out code for specific CPUs.

        Raises:
            RuntimeError: The compiler failed.
        """
        options = compiler_options(dtype, tiled=tiled, limit=limit)
        try:
            compiled, code = _loaded(options, kept=True)
        except OSError:
            # A kept one that is damaged, or in a file system without execution.
            compiled, code = _loaded(options, kept=False)
        return cls(compiled, dtype, code, tiled, limit)

    @property
    def objects(self) -> tuple[Path, ...]:
        """The compiled object file."""
        return (self.object_file,)

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether the kernels take inputs of *dtype*."""
        return dtype == self.dtype

    @contextmanager
    def linked(self) -> Iterator[dict[str, Any]]:
        """Context with AOTInductor options that link the kernels into the programs it compiles."""
        with (
            tempfile.TemporaryDirectory() as folder,
            program_objects.linked([Path(folder)], [_NAME]) as options,
        ):
            # Linkers find archives by their names.
            archive = Path(folder) / f"lib{_NAME}.a"
            subprocess.run([archiver(), "rcs", archive, self.object_file], check=True, capture_output=True)
            yield {
                **options,
                "aot_inductor.custom_ops_to_c_shims": {
                    operation: [_declaration(operation)] for operation in SHAPES
                },
            }

    def call(self, function: str, *arguments: Argument) -> None:
        """Call a C function."""
        self._code[function](*map(_c_value, arguments))


def _loaded(options: Any, *, kept: bool) -> tuple[Path, ctypes.CDLL]:
    """Object file and library of :data:`SOURCE`; ``OSError`` if the library cannot be loaded."""
    # Imported on demand: takes a second or two, and only compiling needs it.
    from torch._inductor.cpp_builder import CppTorchOptions

    compiled = compiled_object(SOURCE, options, kept=kept)
    linking = CppTorchOptions(vec_isa=vector_instructions())
    return compiled, ctypes.CDLL(str(shared_library(_NAME, [compiled], linking, kept=kept)))


def _c_value(argument: Argument) -> Any:
    # Those of a recording alone.
    assert not isinstance(argument, Ids)
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p(None if argument is None else argument.data_ptr())
    if isinstance(argument, tuple):
        return (ctypes.c_int64 * len(argument))(*argument)
    return ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_int64(argument)


def compiler_options(dtype: torch.dtype, *, tiled: bool = False, limit: Limit = "amx") -> Any:
    """Inductor's options for compiling :data:`SOURCE`; arguments as of :meth:`Library.compiled`."""
    from torch._inductor.cpp_builder import CppTorchOptions, is_gcc
    from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512

    flags = [f"-DDECODEKIT_NUMBER={_CPP_TYPES[dtype]}"]
    vectors = vector_instructions()
    if limit == "portable":
        flags.append("-DDECODEKIT_PORTABLE")
    if limit == "avx2" and isinstance(vectors, VecAVX512):
        vectors = VecAVX2()
    if isinstance(vectors, VecAVX2):
        # The processor may have more, of which the compiler knows too.
        flags.append("-mno-avx512f")
    if limit != "amx":
        flags.append("-DDECODEKIT_NO_TILES")
    if tiled:
        flags.append("-DDECODEKIT_TILED")
    if is_gcc():
        # Inductor's flags leave it out, since its own loops are vectorised explicitly.
        flags.append("-ftree-loop-vectorize")
        # Nor do programs of other versions of the kernels, in the same process, share their buffers.
        flags.append("-fno-gnu-unique")
    return CppTorchOptions(vec_isa=vectors, compile_only=True, extra_flags=flags)


def _declaration(operation: Any) -> str:
    """Declaration of the C function that a program calls for *operation*."""
    kinds = {
        "Tensor": "AtenTensorHandle",
        "Optional[Tensor]": "AtenTensorHandle*",
        "float": "double",
        "int": "int64_t",
        "bool": "int32_t",
    }
    inputs = [kinds[str(argument.type)] for argument in operation._schema.arguments]
    outputs = ["AtenTensorHandle*"] * len(operation._schema.returns)
    return f"AOTITorchError aoti_torch_cpu_{operation._opname}({', '.join([*inputs, *outputs])})"
