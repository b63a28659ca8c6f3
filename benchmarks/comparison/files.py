"""The model of a comparison, in the files that the peers read."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from ...neuron_backend.serialization.replaced_folder import replaced_folder
from ..measuring.machine import backend_digest
from ..models.shapes import Shape
from ..peers.process import AbsentPeerError, PeerError

_COMPLETE = "complete"
"""Name of a file in a folder that was written to its end."""

_WRITE_GGUF = Path(__file__).parents[1] / "peers" / "write_gguf.py"


@attrs.frozen
class ComparisonFiles:
    """A folder with a model of random weights; files that exist are not written again."""

    folder: Path
    shape: Shape
    max_length: int

    @property
    def model(self) -> Path:
        """The folder of the model in float32, for ``from_pretrained``."""
        return self.folder / "model"

    def write(self) -> None:
        """Create the model."""
        _written_whole(
            self.model,
            lambda folder: self.shape.model(self.max_length, torch.float32).save_pretrained(folder),
        )

    def decoder(self, name: str) -> Path:
        """The folder of the compiled decoder called *name*, for the present sources of the back-end."""
        return self.folder / f"decoder-{name}-{backend_digest()}"

    def gguf(self, kind: str, python: str = sys.executable) -> tuple[Path, int]:
        """
        The model as a GGUF file.

        Args:
            kind: Type of the matrices: F32, F16, BF16, Q8_0 or Q4_0.

            python: An interpreter that has the package gguf.

        Returns:
            The file, and the bytes that a decode step reads of it.

        Raises:
            AbsentPeerError: gguf is not installed there.

            PeerError: Writing failed.
        """
        file, sizes = self.folder / f"model-{kind}.gguf", self.folder / f"model-{kind}.json"
        if not sizes.exists():
            specification = {
                "weights": str(self._arrays()),
                "config": self._config(),
                "type": kind,
                "file": str(file),
            }
            command = [python, "-P", str(_WRITE_GGUF), json.dumps(specification)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise PeerError(f"writing {file.name} ended with status {done.returncode}")
            answer = json.loads(done.stdout)
            if "absent" in answer:
                raise AbsentPeerError(answer["absent"])
            sizes.write_text(done.stdout)
        read: int = json.loads(sizes.read_text())["read_bytes"]
        return file, read

    def _arrays(self) -> Path:
        arrays = self.folder / "arrays"
        _written_whole(arrays, self._write_arrays)
        return arrays

    def _write_arrays(self, folder: Path) -> None:
        from safetensors.torch import load_file

        for file in self.model.glob("*.safetensors"):
            for name, tensor in load_file(file).items():
                np.save(folder / f"{name}.npy", _array(tensor))

    def _config(self) -> dict[str, Any]:
        shape = self.shape
        return {
            **attrs.asdict(shape),
            "max_position_embeddings": max(self.max_length, shape.max_position_embeddings),
            "head_dim": shape.hidden_size // shape.num_attention_heads,
        }


def _written_whole(final: Path, write: Callable[[Path], None]) -> None:
    """Have the folder *final* written, unless it was to its end."""
    if not (final / _COMPLETE).exists():
        with replaced_folder(final) as fresh:
            write(fresh)
            (fresh / _COMPLETE).touch()


def _array(tensor: Tensor) -> Any:
    return tensor.float().numpy()
