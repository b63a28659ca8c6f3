"""The one model of a comparison, in the files that its contenders read."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from .contenders.process import AbsentContenderError, ContenderError
from .shapes import Shape

_WRITE_GGUF = Path(__file__).parent / "contenders" / "write_gguf.py"


@attrs.frozen
class ComparisonFiles:
    """A folder with a model of random weights; what is there already is not written again."""

    folder: Path
    shape: Shape
    max_length: int

    @property
    def model(self) -> Path:
        """The folder that ``from_pretrained`` takes, in float32."""
        return self.folder / "model"

    def write(self) -> None:
        """Make the model."""
        if (self.model / "config.json").exists():
            return
        self.shape.model(self.max_length, torch.float32).save_pretrained(self.model)

    def decoder(self, name: str) -> Path:
        """Where the compiled decoder of that *name* is kept, until the code that compiles is another."""
        return self.folder / f"decoder-{name}-{backend_digest()}"

    def gguf(self, kind: str, python: str = sys.executable) -> tuple[Path, int]:
        """
        The model as a GGUF file.

        Args:
            kind: Of its matrices: F32, F16, BF16, Q8_0 or Q4_0.

            python: An interpreter that has the package gguf.

        Returns:
            The file, and the bytes of it that a decode step reads.

        Raises:
            AbsentContenderError: gguf is not installed there.

            ContenderError: It cannot be written.
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
                raise ContenderError(f"writing {file.name} has ended with status {done.returncode}")
            said = json.loads(done.stdout)
            if "absent" in said:
                raise AbsentContenderError(said["absent"])
            sizes.write_text(done.stdout)
        read: int = json.loads(sizes.read_text())["read_bytes"]
        return file, read

    def _arrays(self) -> Path:
        folder = self.folder / "arrays"
        if not folder.exists():
            from safetensors.torch import load_file

            folder.mkdir()
            for file in self.model.glob("*.safetensors"):
                for name, tensor in load_file(file).items():
                    np.save(folder / f"{name}.npy", _array(tensor))
        return folder

    def _config(self) -> dict[str, Any]:
        config = self.shape.config(self.max_length)
        numbers = (*_SIZES, "rms_norm_eps", "max_position_embeddings")
        return {
            **{name: getattr(config, name) for name in numbers},
            "head_dim": self.shape.hidden_size // self.shape.num_attention_heads,
            "rope_theta": self.shape.rope_theta,
        }


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)


def backend_digest() -> str:
    """What the sources are that compile a decoder: programs of others are not to be timed as theirs."""
    sources = Path(__file__).parents[1] / "neuron_backend"
    digest = hashlib.sha256(torch.__version__.encode())
    for file in sorted(path for path in sources.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        digest.update(str(file.relative_to(sources)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _array(tensor: Tensor) -> Any:
    return tensor.float().numpy()
