"""
A decoder from a folder.

The architecture comes from config.json, the weights from safetensors; nothing is unpickled.
Programs are native code: they are run only if this machine compiled them or the caller trusts
them, and otherwise compiled again.
"""

from os import PathLike
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from . import machine, trust
from .aoti import Package
from .compilation import compile_programs, load_programs, require_compiler
from .fingerprint import weight_table
from .manifest import Manifest
from .saving import CONSTANTS, program_path
from .static_decoder import StaticDecoder
from .step import program_name
from .weights import adopt, weight_dtype


def load_decoder(folder: str | PathLike[str], *, trust_programs: bool = False) -> StaticDecoder:
    """
    Load what :meth:`StaticDecoder.save` wrote.

    Args:
        folder: The folder.

        trust_programs: Run the folder's native code even if it was compiled elsewhere. Only
            for folders from people you would run a binary from.

    Returns:
        A decoder that gives the saved one's logits. Its ``compiled`` says whether the
        programs were compiled again, because this machine does not know them.

    Raises:
        ValueError: Files, versions, processor or shapes do not match what was saved.
    """
    folder = Path(folder)
    manifest = Manifest.read(folder)
    if manifest.target == "cpu":
        _check_platform(manifest)
    manifest.verify(folder)
    stored = load_file(folder / CONSTANTS)
    decoder = _eager(folder, manifest, stored)
    if manifest.target == "cpu":
        _add_programs(decoder, folder, stored, trust_programs)
    return decoder


def _check_platform(manifest: Manifest) -> None:
    again = "compile_decoder(folder) compiles it again"
    if manifest.versions["torch"] != torch.__version__:
        raise ValueError(
            f"programs must be run by the torch that compiled them, {manifest.versions['torch']}: "
            f"got {torch.__version__}; {again}"
        )
    missing = sorted(set(manifest.instruction_sets) - set(machine.instruction_sets()))
    if manifest.processor != machine.processor() or missing:
        raise ValueError(
            f"programs must be run on a processor like the one they were compiled on, {manifest.processor}: "
            f"got {machine.processor()} without {', '.join(missing) or 'differences'}; {again}"
        )


def _eager(folder: Path, manifest: Manifest, stored: dict[str, Tensor]) -> StaticDecoder:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=weight_dtype(manifest.dtype),
        attn_implementation=manifest.attention,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )
    model = adopt(model)
    for name, tensor in stored.items():
        if name.startswith("buffers/"):
            _set_buffer(model, name.removeprefix("buffers/"), tensor)
    # Not compared with the stock model again: the hashes say that weights and programs are the
    # ones that were.
    decoder = StaticDecoder.unchecked(model, manifest.shape, manifest.tree_widths)
    _check_model(decoder, manifest)
    return decoder


def _set_buffer(model: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    model.get_submodule(owner).register_buffer(leaf, tensor, persistent=False)


def _check_model(decoder: StaticDecoder, manifest: Manifest) -> None:
    # A weight of another dtype than the model's own does not come back as it was.
    found = weight_table(decoder.step)
    different = {
        name for name in {*found, *manifest.weights} if found.get(name) != manifest.weights.get(name)
    }
    if different:
        name = min(different)
        raise ValueError(f"weight {name} must be {manifest.weights.get(name)}: got {found.get(name)}")


def _add_programs(
    decoder: StaticDecoder, folder: Path, stored: dict[str, Tensor], trust_programs: bool
) -> None:
    names = [program_name(step, width) for step, width in decoder.steps()]
    packages = {name: _package(folder, program_path(name), stored) for name in names}
    if trust_programs or all(trust.is_recorded(package.content) for package in packages.values()):
        load_programs(decoder, packages, compiled=False)
        return
    require_compiler()
    compile_programs(decoder)


def _package(folder: Path, name: str, stored: dict[str, Tensor]) -> Package:
    if not (folder / name).is_file():
        raise ValueError(
            f"a saved decoder must have a program for each of its widths: got no {folder / name}"
        )
    return Package(
        content=(folder / name).read_bytes(),
        constants={
            key.removeprefix(f"{name}/"): tensor
            for key, tensor in stored.items()
            if key.startswith(f"{name}/")
        },
    )
