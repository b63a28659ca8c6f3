"""Format of decoder.json, which lists the files of a saved decoder and what it was compiled for."""

import json
from pathlib import Path
from typing import Any

import attrs

from ...decoding.protocols import DecoderShape
from .blueprint import Blueprint
from .file_hashes import sha256

NAME = "decoder.json"

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

    quantized: dict[str, str] = attrs.field(factory=dict)
    """Name of each quantised layer to its format."""

    blueprint: Blueprint | None = None
    """Lets the programs run without building the model; None where they cannot."""

    def write(self, folder: Path) -> None:
        """Write decoder.json."""
        facts = {"format": _FORMAT, **attrs.asdict(self)}
        text = json.dumps({**facts, "checksum": _checksum(facts)}, indent=2)
        (folder / NAME).write_text(text + "\n", encoding="utf-8")

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
            shape, plan = facts.pop("shape"), facts.pop("blueprint")
            return cls(
                shape=DecoderShape(**{**shape, "widths": tuple(shape["widths"])}),
                blueprint=None if plan is None else Blueprint(**plan),
                **facts,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{NAME} must have the facts of its format: got {error!r}") from error


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
