"""The files of a saved decoder, and the decoder.json that lists them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import attrs

from ...decoding.protocols import DecoderShape
from .blueprint import Blueprint

NAME = "decoder.json"

CONSTANTS = "constants.safetensors"
"""The tensors that neither weights nor config bring back exactly."""

PLAIN_WEIGHTS = "model.safetensors"
"""Where transformers puts the weights of a model that is not quantised."""

QUANTIZED_WEIGHTS = "weights.safetensors"
"""Those of one that is: not where transformers looks."""

BUFFERS = "buffers/"
"""In :data:`CONSTANTS`, before the name of a buffer."""

PROGRAMS = "programs/"
"""Before the file name of a program: where it lies in the folder."""

_FORMAT = 3


@attrs.frozen
class Manifest:
    """What a folder holds, and what has to match before it is used."""

    shape: DecoderShape
    dtype: str
    target: str
    attention: str
    """The model's attention implementation."""

    versions: dict[str, str]
    """Of decodekit, torch and transformers, and of the packages of AWS Neuron that were installed."""

    processor: str
    instruction_sets: list[str]
    weights: dict[str, list[Any]]
    """Name to dtype and shape."""

    files: dict[str, str]
    """Path below the folder to the sha256 of its content."""

    tree_widths: list[int]
    spans: list[int]
    tp_degree: int = 1
    """How many processes, or cores of one, the programs were compiled for. The weights are whole."""

    quantized: dict[str, str] = attrs.field(factory=dict)
    """Name of each quantised layer to its format."""

    blueprint: Blueprint | None = None
    """With it, the programs run without the model; None where they cannot."""

    def write(self, folder: Path) -> None:
        """Store as decoder.json."""
        facts = {"format": _FORMAT, **attrs.asdict(self)}
        text = json.dumps({**facts, "checksum": _checksum(facts)}, indent=2)
        (folder / NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """
        Read decoder.json.

        Raises:
            ValueError: It is missing, of another format, or not what was written.
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

    def verify(self, folder: Path) -> None:
        """
        Compare every file with its hash.

        Raises:
            ValueError: One is missing or differs.
        """
        for name in self.files:
            self.check_present(folder, name)
            self.check_hash(folder, name, file_sha256(folder / name))

    @staticmethod
    def check_present(folder: Path, name: str) -> None:
        """Refuse a *folder* without the file *name*."""
        if not (folder / name).is_file():
            raise ValueError(f"a saved decoder must have every file it lists: got no {folder / name}")

    def check_hash(self, folder: Path, name: str, found: str) -> None:
        """Refuse a file whose sha256 is *found* and should be another."""
        if found != self.files[name]:
            raise ValueError(
                f"a saved decoder's files must be as they were saved: got a changed {folder / name}"
            )


def weights_file(quantized: bool) -> str:
    """Where the weights are: of a model that is *quantized*, not where transformers looks."""
    return QUANTIZED_WEIGHTS if quantized else PLAIN_WEIGHTS


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"'folder' must hold a saved decoder with a {NAME}: got {path.parent}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{NAME} must be JSON: got {path} ({error})") from error
    found = facts.get("format") if isinstance(facts, dict) else None
    if found != _FORMAT:
        raise ValueError(f"{NAME} must be of format {_FORMAT}: got {found!r}")
    return dict(facts)


def _checksum(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
