"""Format of decoder.json, which lists the files of a saved decoder and what it was compiled for."""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from ...decoding.protocols import DecoderShape
from ...decoding.whole_file import write_whole
from ..models import saved_folder
from ..models.weights import weight_dtype
from .blueprint import Blueprint
from .file_hashes import sha256
from .typed_json import check_fields

NAME = saved_folder.NAME

CONSTANTS = "constants.safetensors"
"""File of the tensors that weights and config do not restore exactly."""

PLAIN_WEIGHTS = "model.safetensors"
"""File of an unquantised model's weights, where transformers expects them."""

QUANTIZED_WEIGHTS = "weights.safetensors"
"""File of a quantised model's weights, where transformers does not look."""

BUFFERS = "buffers/"
"""Prefix of buffer names in :data:`CONSTANTS`."""

PROGRAMS = "programs/"
"""Folder of the compiled programs, and prefix of their names in :data:`CONSTANTS`."""

_FORMAT = 4

# No characters that have a meaning in the patterns of names that the hub's downloads take.
_FILE = re.compile(r"[A-Za-z0-9_][\w. /-]*", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")


@attrs.frozen
class Manifest:
    """Contents of a saved decoder's folder, and what must match before it is used."""

    shape: DecoderShape
    dtype: str
    target: str
    attention: str
    """The model's attention implementation."""

    versions: dict[str, str]
    """Versions of decodekit, torch, transformers and the installed AWS Neuron packages."""

    cpu_family: str
    instruction_sets: list[str]
    weights: dict[str, list[Any]]
    """Name to dtype and shape."""

    files: dict[str, str]
    """Path below the folder to the SHA-256 of its content."""

    tree_widths: list[int]
    spans: list[int]
    tp_degree: int = 1
    """Processes, or cores of one process, that the programs were compiled for. Weights are stored whole."""

    row_widths: list[int] = attrs.field(factory=list)
    """Columns of the programs of one row."""

    copies_rows: bool | None = None
    """Whether rows can be copied. None, in older folders: if the target copies them by assignment."""

    quantized: dict[str, str] = attrs.field(factory=dict)
    """Name of each quantised layer to its format."""

    blueprint: Blueprint | None = None
    """Lets the programs run without building the model; None where they cannot."""

    def write(self, folder: Path) -> None:
        """Write decoder.json, the last file of a folder: if it is there, the folder is complete."""
        facts = {"format": _FORMAT, **attrs.asdict(self)}
        text = json.dumps({**facts, "checksum": _checksum(facts)}, indent=2)
        write_whole(folder / NAME, f"{text}\n".encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """
        Read decoder.json.

        Raises:
            ValueError: It is missing, of another format, or was changed.
        """
        facts = _parse(folder / NAME)
        if facts.pop("checksum", None) != _checksum(facts):
            raise ValueError(f"{NAME} must be as it was saved: got {folder / NAME}, whose checksum differs")
        del facts["format"]
        try:
            check_fields(cls, facts)
            shape, plan = facts.pop("shape"), facts.pop("blueprint", None)
            manifest = cls(
                shape=DecoderShape(**shape), blueprint=None if plan is None else Blueprint(**plan), **facts
            )
            manifest._check()
        except ValueError as error:
            raise ValueError(f"{NAME} must have the facts of its format: {error}") from error
        return manifest

    def _check(self) -> None:
        """Raise ``ValueError`` if facts that other code relies on do not hold."""
        for name, digest in self.files.items():
            parts = PurePosixPath(name).parts
            if not _FILE.fullmatch(name) or ".." in parts or "/".join(parts) != name:
                raise ValueError(f"files must be named by plain paths below the folder: got {name!r}")
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"files must have SHA-256 digests: got {digest!r} of {name}")
        if "torch" not in self.versions:
            raise ValueError(f"versions must have torch's: got {self.versions}")
        weight_dtype(self.dtype)
        if self.tp_degree < 1:
            raise ValueError(f"tp_degree must be >= 1: got {self.tp_degree}")


def weights_file(quantized: bool) -> str:
    """Name of the weights' file."""
    return QUANTIZED_WEIGHTS if quantized else PLAIN_WEIGHTS


def _parse(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"'folder' must hold a saved decoder with a {NAME}: got {path.parent}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{NAME} must be JSON: got {path} ({error})") from error
    found = facts.get("format") if isinstance(facts, dict) else None
    if isinstance(found, int) and found < _FORMAT:
        raise ValueError(
            f"{NAME} must be of format {_FORMAT}: got {found} in {path.parent}, which was saved by an older "
            "release of decodekit; compile the model again with compile_decoder() and save it in a new folder"
        )
    if found != _FORMAT:
        raise ValueError(f"{NAME} must be of format {_FORMAT}: got {found!r}")
    return dict(facts)


def _checksum(facts: dict[str, Any]) -> str:
    return sha256(json.dumps(facts, sort_keys=True).encode())
