"""
Checkouts of the libraries whose sources are run and read here.

None of their code is in this repository. Each checkout is a folder that an environment variable names. As a
program, prints which are absent and exits with 3 if any is.
"""

import os
import sys
from pathlib import Path

import attrs
import pytest


@attrs.frozen
class Checkout:
    """One library's sources."""

    name: str
    """Name of the library."""

    variable: str
    """Environment variable with the folder of the checkout."""

    repository: str
    """Where the sources are public, as ``owner/name`` on GitHub."""

    commit: str
    """The commit that the tests were written for."""

    @property
    def folder(self) -> Path | None:
        """The folder, or None if the variable is not set or names no folder."""
        value = os.environ.get(self.variable)
        return Path(value) if value and Path(value).is_dir() else None

    def file(self, path: str) -> Path:
        """The file at *path* of the checkout; skips the test if the checkout is absent."""
        if self.folder is None:
            pytest.skip(self.absence)
        return self.folder / path

    @property
    def absence(self) -> str:
        """What is missing, as a sentence."""
        return (
            f"{self.name} is absent: set {self.variable} to a checkout of https://github.com/"
            f"{self.repository} (commit {self.commit})"
        )


NXDI = Checkout(
    "NxD Inference",
    "DECODEKIT_NXDI",
    "aws-neuron/neuronx-distributed-inference",
    "4bcdc54bf3b6ccdad490e5cd0680a3dc95270b8e",
)
OPTIMUM_NEURON = Checkout(
    "optimum-neuron",
    "DECODEKIT_OPTIMUM_NEURON",
    "huggingface/optimum-neuron",
    "213224e6aae42e570b88b3a5e6f2716112823469",
)
TRANSFORMERS_NEURONX = Checkout(
    "transformers-neuronx",
    "DECODEKIT_TRANSFORMERS_NEURONX",
    "aws-neuron/transformers-neuronx",
    "1ade6d74224a89fb6366ded52153e2f32781e20d",
)
TORCH_NEURON = Checkout(
    "TorchNeuron",
    "DECODEKIT_TORCH_NEURON",
    "parmoham-aws/test-repo-parmoham",
    "98154b867aa24562a3213e520d9ad7fd41032291",
)
VLLM_NEURON = Checkout(
    "vLLM Neuron",
    "DECODEKIT_VLLM_NEURON",
    "vllm-project/vllm-neuron",
    "a5ef7c88c3e4e44bea9af9051d8fb113588c0a21",
)

CHECKOUTS = (NXDI, OPTIMUM_NEURON, TRANSFORMERS_NEURONX, TORCH_NEURON, VLLM_NEURON)
"""All of them."""


def main() -> int:
    """Print the absent checkouts; 3 if there are any, else 0."""
    absent = [checkout.absence for checkout in CHECKOUTS if checkout.folder is None]
    print(*absent, sep="\n", end="\n" if absent else "", file=sys.stderr)
    return 3 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
