"""Loading of compiled programs of either form."""

import io
import zipfile
from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

from ...artifacts.packages import Package
from ...kv_cache.buffers import CacheBuffers
from .aoti import CompiledProgram
from .layered.layered_program import LayeredProgram
from .layered.program_file import CODE

CpuProgram: TypeAlias = CompiledProgram | LayeredProgram
"""A loaded program."""


def load_program(
    package: Package, tensors: Mapping[str, Tensor], cache: CacheBuffers, fingerprint: str
) -> CpuProgram:
    """
    Load native code, which the caller must trust.

    Args:
        package: The code and its own constants.

        tensors: The other tensors by name, as :func:`~...step.tensors_of` the compiled step.

        cache: The cache that it writes to.

        fingerprint: The fingerprint that it must have.

    Raises:
        ValueError: It is no program, or has another fingerprint or other constants.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(package.content)) as archive:
            layered = CODE in archive.namelist()
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"a program must be a .zip archive: got {len(package.content)} other bytes"
        ) from error
    return (LayeredProgram if layered else CompiledProgram)(package, tensors, cache, fingerprint)
