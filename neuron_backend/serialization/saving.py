"""
Saving a decoder as a folder.

The folder holds the files that Hugging Face writes for the model (config.json, generation_config.json,
model.safetensors, tokenizer files), decoder.json, constants.safetensors, and the compiled programs
in programs/. Nothing is pickled.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ... import __version__
from ...decoding.file_digest import file_sha256
from ..artifacts import machine
from ..artifacts.blueprint import Blueprint
from ..artifacts.fingerprint import weight_table
from ..artifacts.manifest import BUFFERS, CONSTANTS, NAME, PROGRAMS, Manifest, weights_file
from ..artifacts.quantized_files import save_quantized
from ..artifacts.stored_weights import TensorEntry, tensor_entries
from ..models.fused_projections import fused_projection_names
from ..models.weights import derived_buffers, dtype_name
from ..models.without_bars import without_bars
from ..progress import stage
from ..static_decoder import StaticDecoder
from ..targets.neuron.detect import neuron_versions
from ..targets.target import RunsStored
from ..tensor_parallel.lost_ranks import fail_together, report_lost_ranks
from ..tensor_parallel.sharded_model import whole_weights
from .replaced_folder import read_unreplaced, recover_folder, replaced_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def save_decoder(
    decoder: StaticDecoder,
    folder: str | PathLike[str],
    tokenizer: "PreTrainedTokenizerBase | None" = None,
) -> None:
    """Save as :meth:`~..compiled_decoder.CompiledDecoder.save` does."""
    with report_lost_ranks(decoder.ranks):
        weights = whole_weights(decoder.step.model)
        with fail_together(decoder.ranks):
            if decoder.ranks is None or decoder.ranks.rank == 0:
                _save(decoder, folder, weights, tokenizer)


def _save(
    decoder: StaticDecoder,
    folder: str | PathLike[str],
    weights: Mapping[str, Tensor],
    tokenizer: "PreTrainedTokenizerBase | None",
) -> None:
    final = checked_folder(folder)
    with stage(decoder.progress, f"saving to {final}"), replaced_folder(final) as fresh, _disk_errors():
        _write(decoder, fresh, weights, tokenizer)


def checked_folder(folder: str | PathLike[str]) -> Path:
    """
    The absolute path of *folder*, in which a decoder may be saved; what an interrupted save left is restored.

    Raises:
        ValueError: It is there, and is neither empty nor a saved decoder; or no other folder can take its
            place.
    """
    final = Path(folder).resolve()
    _check_place(final)
    recover_folder(final)
    read_unreplaced(final, partial(_check_replaceable, final))
    return final


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise as an OSError what safetensors has an error of its own for, such as a full disk."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"the weights cannot be written: {error}") from error


def constants(decoder: StaticDecoder) -> dict[str, Tensor]:
    """Tensors that weights and config do not restore exactly, by kind and name."""
    found = {f"{BUFFERS}{name}": tensor for name, tensor in derived_buffers(decoder.step.model).items()}
    for program, package in decoder.packages.items():
        found |= {f"{PROGRAMS}{program}/{name}": tensor for name, tensor in package.constants.items()}
    # clone: safetensors refuses tensors that share memory, as some of these do.
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def _write(
    decoder: StaticDecoder,
    folder: Path,
    weights: Mapping[str, Tensor],
    tokenizer: "PreTrainedTokenizerBase | None",
) -> None:
    model = decoder.step.model
    if decoder.weights.layers:
        save_quantized(model, folder)
    else:
        # In one file, whatever its size.
        with without_bars():
            apart = {name: _storage_of_its_own(tensor) for name, tensor in weights.items()}
            model.save_pretrained(folder, state_dict=apart, max_shard_size="1000TB")
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    save_file(constants(decoder), folder / CONSTANTS)
    for program, package in decoder.packages.items():
        path = folder / PROGRAMS / program
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(package.content)
    _manifest(decoder, folder).write(folder)


def _storage_of_its_own(tensor: Tensor) -> Tensor:
    """
    *tensor* as the whole of a storage, without a copy.

    Fused projections are views of one storage. transformers would copy them, all before it writes the first.
    """
    is_whole = tensor.nbytes == tensor.untyped_storage().nbytes()
    if is_whole or not tensor.is_contiguous() or tensor.device.type != "cpu":
        return tensor
    octets = tensor.detach().reshape(-1).view(torch.uint8)
    return torch.from_numpy(octets.numpy()).view(tensor.dtype).reshape(tensor.shape)


def _manifest(decoder: StaticDecoder, folder: Path) -> Manifest:
    import transformers

    model = decoder.step.model
    return Manifest(
        shape=decoder.shape,
        dtype=dtype_name(model.dtype),
        target=decoder.target,
        attention=model.config._attn_implementation,
        versions={
            "decodekit": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **neuron_versions(),
        },
        cpu_family=machine.cpu_family(),
        instruction_sets=machine.instruction_sets(),
        weights=weight_table(model.state_dict()),
        files={name: file_sha256(folder / name) for name in _names(folder)},
        tree_widths=list(decoder.tree_widths),
        spans=list(decoder.spans),
        row_widths=list(decoder.row_widths),
        copies_rows=decoder.copies_rows,
        tp_degree=decoder.tp_degree,
        quantized=decoder.weights.layers,
        blueprint=_blueprint(decoder, folder),
    )


def _blueprint(decoder: StaticDecoder, folder: Path) -> Blueprint | None:
    # Other targets need the model.
    if decoder.ranks is not None or not isinstance(decoder.compiler, RunsStored):
        return None
    return blueprint_of(decoder, folder / weights_file(bool(decoder.weights.layers)))


def blueprint_of(decoder: StaticDecoder, weights: Path) -> Blueprint | None:
    """
    The blueprint of *decoder*, whose weights have been written to the file *weights*.

    None if names or shapes differ in the file: some models do not store the tensors they compute with.
    """
    model, cache = decoder.step.model, decoder.cache
    ties = _ties(model.state_dict(), tensor_entries(weights))
    if ties is None:
        return None
    return Blueprint(
        architecture=type(model).__name__,
        masks=repr(decoder.step.plan),
        cache_dtype=dtype_name(cache.keys[0].dtype),
        layers=[
            [keys.shape[1], keys.shape[3], values.shape[1], values.shape[3]]
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ],
        ties=ties,
        fused=fused_projection_names(model),
    )


def _ties(state: Mapping[str, Tensor], stored: Mapping[str, TensorEntry]) -> dict[str, str] | None:
    kinds = {name: (entry.dtype, entry.shape) for name, entry in stored.items()}
    first = {_memory(state[name]): name for name in stored if name in state}
    ties = {name: first.get(_memory(tensor)) for name, tensor in state.items() if name not in stored}
    same = set(stored) <= set(state) and None not in ties.values()
    if not same or any(kinds[name] != (state[name].dtype, tuple(state[name].shape)) for name in stored):
        return None
    return {name: found for name, found in ties.items() if found is not None}


def _memory(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, *tensor.shape, *tensor.stride()


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _check_place(folder: Path) -> None:
    if os.path.ismount(folder):
        raise ValueError(f"'folder' must not be a mount point, but may be a folder in one: got {folder}")
    parent = next(path for path in folder.parents if path.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"'folder' must be in a folder that can be written: got {folder} in {parent}")


def _check_replaceable(folder: Path) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    rule = "'folder' must be new, empty or a saved decoder"
    if not (folder / NAME).is_file():
        raise ValueError(f"{rule}: got {folder}, which has no {NAME}")
    foreign = set(_names(folder)) - {NAME, *Manifest.read(folder).files}
    if foreign:
        raise ValueError(f"{rule}: got {folder}, which also holds {min(foreign)}")
