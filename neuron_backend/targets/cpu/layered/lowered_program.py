"""A program as C++ source, and its compilation to a file."""

import io
import json
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.fx import Node

from ....artifacts.packages import Package
from ..cpp_build import build
from ..kernel_description import kernel_metadata
from ..kernel_library import Library, NoLibrary
from ..vector_instructions import vector_instructions
from .program_file import CODE, LAYOUT, METADATA, Layout
from .program_source import ProgramCalls, program_source


@attrs.frozen(eq=False)
class LoweredProgram:
    """The calls of a program and what else its file holds."""

    calls: ProgramCalls
    inputs: tuple[str, ...]
    own: tuple[str, ...]
    slots: tuple[int, ...]
    """Fields as of :class:`Layout`."""

    metadata: dict[str, str]
    """That of the program, without that of kernels."""

    constants: dict[str, Tensor]
    """Tensors that tracing found besides parameters and buffers."""

    nodes: list[Node]
    """Of all graphs, after their rewrites."""

    dtype: torch.dtype
    """Of the layers' inputs."""

    def built(self, kernels: Library | NoLibrary, objects: Sequence[Path]) -> Package:
        """
        Compile the source and link it with *kernels* and further *objects*. Takes seconds.

        Raises:
            RuntimeError: The compiler failed.
        """
        source, memory = program_source(self.calls)
        own = kernel_metadata(
            self.nodes,
            self.dtype,
            tiled=kernels.tiled,
            limit=kernels.limit,
        )
        layout = Layout(self.inputs, self._outputs(), self.own, self.slots, memory)
        metadata = {**self.metadata, **own, LAYOUT: json.dumps(attrs.asdict(layout))}
        code = _compiled(source, [*kernels.objects, *objects])
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
            # Of a fixed date, so that equal programs are equal files.
            archive.writestr(zipfile.ZipInfo(METADATA), json.dumps(metadata))
            archive.writestr(zipfile.ZipInfo(CODE), code)
        return Package(content.getvalue(), self.constants)

    def _outputs(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((str(dtype).removeprefix("torch."), shape) for dtype, shape in self.calls.main[0].shapes)


def _compiled(source: str, objects: Sequence[Path]) -> bytes:
    """The shared library."""
    # Imported on demand: takes a second or two, and only compiling needs it.
    from torch._inductor.cpp_builder import CppTorchOptions, is_gcc

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.cpp"
        path.write_text(source)
        # Memory is used again for numbers of other types.
        flags = ["-fno-strict-aliasing"]
        if is_gcc():
            # Inductor's loops have vectors already. Of complex products, g++ would make multiplications and
            # additions that round once (vfmaddsub), whatever -ffp-contract is, where it unrolls a loop: in
            # narrow programs, for example.
            flags.append("-fno-tree-slp-vectorize")
        options: Any = CppTorchOptions(vec_isa=vector_instructions(), extra_flags=flags)
        return build("program", [path, *objects], options, Path(folder)).read_bytes()
