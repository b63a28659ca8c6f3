"""
Which kernels a CPU program uses: recorded in its metadata when it is compiled, and described in words.

A program's metadata is text by name, which its file holds as JSON: it is read without loading native code.
"""

import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ...artifacts.machine import instruction_sets
from ...artifacts.manifest import PROGRAMS
from .instruction_limit import Limit

METADATA = "decodekit_kernels"
"""Name of the record in a program's metadata."""

BIT_EXACT = "decodekit_columns_bit_exact"
"""
Name in a program's metadata of ``"true"`` where own kernels serve every product and attention, so that a
column's logits are the same bits at every width, batch and span.
"""

SKIPS_PADDING = "decodekit_skips_padding"
"""Name in a program's metadata of ``"true"`` where own kernels are given the ids, and leave out padding."""

# Of the operations in kernel_operations.
_NAMESPACE = "decodekit"

_INTEGER_PRODUCTS = {"int8_gemm", "int4_gemm"}

# As in csrc/gemm.h: AVX-512 or AVX2, and what some kernels use besides.
_VECTORS = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_SHORT_VECTORS = {"avx2", "fma"}
_INTEGER_DOT, _BFLOAT16_DOT, _TILES = "avx512_vnni", "avx512_bf16", "amx_tile"
_WORDS = {_INTEGER_DOT: "VNNI", _BFLOAT16_DOT: "BF16", _TILES: "AMX"}


def kernel_metadata(
    nodes: Iterable[Node],
    dtype: torch.dtype,
    *,
    tiled: bool = False,
    limit: Limit = "amx",
) -> dict[str, str]:
    """
    The record of a program's kernels, as metadata.

    Args:
        nodes: The nodes of what is compiled, after its rewrites.

        dtype: Dtype of the layers' inputs.

        tiled: Whether the own kernels multiply bfloat16 with AMX tiles; integers are wherever it has them.

        limit: The most that they may use.
    """
    targets = {node.target for node in nodes if isinstance(node.target, OpOverload)}
    own = {target._opname for target in targets if target.namespace == _NAMESPACE}
    known = instruction_sets()
    if limit in ("amx", "avx512") and _VECTORS.issubset(known):
        wanted = {
            *_VECTORS,
            *([_INTEGER_DOT] if own & _INTEGER_PRODUCTS else []),
            *([_BFLOAT16_DOT] if dtype == torch.bfloat16 and "float_gemm" in own else []),
            *([_TILES] if limit == "amx" and (tiled or own & _INTEGER_PRODUCTS) else []),
        }
    else:
        wanted = set() if limit == "portable" else _SHORT_VECTORS
    found = [name for name in known if name in wanted]
    return {METADATA: json.dumps({"operations": sorted(own), "instruction_sets": found})}


def describe_kernels(metadata: Mapping[str, str]) -> str:
    """
    The kernels of the program with *metadata*, such as ``"own kernels (AVX-512, VNNI)"``.

    >>> record = '{"operations": ["float_gemm"], "instruction_sets": []}'
    >>> describe_kernels({METADATA: record})
    'own kernels (portable)'
    >>> describe_kernels({})
    'kernels not recorded'
    """
    if METADATA not in metadata:
        # Compiled by a release that did not record them; such programs run all the same.
        return "kernels not recorded"
    record = json.loads(metadata[METADATA])
    if not record["operations"]:
        return "torch's kernels"
    return f"own kernels ({', '.join(instruction_words(record['instruction_sets']))})"


def is_bit_exact(metadata: Mapping[str, str]) -> bool:
    """Whether the program with *metadata* is recorded as :data:`BIT_EXACT`."""
    return metadata.get(BIT_EXACT) == "true"


def does_skip_padding(metadata: Mapping[str, str]) -> bool:
    """Whether the program with *metadata* is recorded as :data:`SKIPS_PADDING`."""
    return metadata.get(SKIPS_PADDING) == "true"


def instruction_words(sets: Sequence[str]) -> list[str]:
    """
    Names of those of the instruction *sets* that own kernels may use.

    >>> instruction_words(["avx512bw", "avx512dq", "avx512f", "avx512vl", "avx512_vnni"])
    ['AVX-512', 'VNNI']
    """
    if _VECTORS.issubset(sets):
        return ["AVX-512", *(word for name, word in _WORDS.items() if name in sets)]
    return ["AVX2"] if _SHORT_VECTORS.issubset(sets) else ["portable"]


def saved_kernels(folder: Path) -> dict[str, str]:
    """
    The kernels of the CPU programs that a saved decoder's *folder* holds, by name.

    Raises:
        ValueError: A file is not a program.
    """
    paths = sorted((folder / PROGRAMS).glob("*.zip"), key=_kind_and_width)
    return {path.stem: describe_kernels(_metadata(path)) for path in paths}


def _metadata(path: Path) -> dict[str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            # Of each of its parts, all the same.
            name = next(name for name in archive.namelist() if name.endswith("_metadata.json"))
            return dict(json.loads(archive.read(name)))
    except (OSError, StopIteration, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"a .zip file must be a program with metadata: got {path} ({error!r})") from error


def _kind_and_width(path: Path) -> tuple[str, int]:
    kind, _, width = path.stem.rpartition("_")
    return kind, int(width) if width.isdecimal() else 0
