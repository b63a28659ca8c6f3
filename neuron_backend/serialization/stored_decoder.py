"""
A saved decoder without its model.

Programs take tensors by name, and the manifest's blueprint says which. So a folder whose programs may
be run is loaded without the model library and without building a module; what asks for the model
later gets it built then, over the same tensors.
"""

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load
from torch import Tensor

from ..artifacts import trust
from ..artifacts.blueprint import Blueprint
from ..artifacts.fingerprint import Fitted
from ..artifacts.manifest import BUFFERS, CONSTANTS, NAME, PROGRAMS, Manifest, file_sha256, weights_file
from ..artifacts.packages import below, packages_of
from ..artifacts.stored_weights import StoredWeights, entries_of
from ..compiled_decoder import CompiledDecoder
from ..targets.target import RunsStored
from .saved_model import build_model, check_dtype, check_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CONFIGS = ("config.json", "generation_config.json")


def stored_decoder(
    folder: Path, manifest: Manifest, target: RunsStored, trust_programs: bool
) -> CompiledDecoder | None:
    """
    The decoder in *folder*; None if its model has to be built, or its programs compiled again.

    Raises:
        ValueError: A file is missing, is not what was saved, or does not fit the others.
    """
    plan, file = manifest.blueprint, weights_file(bool(manifest.quantized))
    if plan is None or manifest.tp_degree != 1:
        return None
    contents = _contents(folder, manifest, file)
    programs = below(PROGRAMS, contents)
    if not (trust_programs or all(map(trust.is_recorded, programs.values()))):
        return None
    constants = load(contents[CONSTANTS])
    buffers = below(BUFFERS, constants)
    weights = _read(folder / file, manifest, plan)
    state = {**weights.tensors, **{name: weights.tensors[same] for name, same in plan.ties.items()}}
    decoder = CompiledDecoder.without_model(
        plan.geometry(manifest.shape.vocab_size),
        manifest.shape,
        manifest.tree_widths,
        manifest.spans,
        partial(_built, manifest, contents, weights.tensors, buffers),
    )
    with ThreadPoolExecutor(1) as aside:
        # While the programs are opened, another thread hashes what they are going to run over.
        digest = aside.submit(weights.sha256)
        target.load_stored(
            decoder,
            packages_of(programs, constants),
            Fitted.stored(plan.architecture, plan.masks, state, buffers),
            {f"model.{name}": tensor for name, tensor in {**state, **buffers}.items()} | weights.together,
        )
        manifest.check_hash(folder, file, digest.result())
    decoder.warm_up(decoder.spans[:1])
    return decoder


def _contents(folder: Path, manifest: Manifest, weights: str) -> dict[str, bytes]:
    """Every file but the *weights*, as it was saved."""
    found = {}
    for name in manifest.files:
        manifest.check_present(folder, name)
        if name != weights:
            found[name] = (folder / name).read_bytes()
            manifest.check_hash(folder, name, trust.sha256(found[name]))
    return found


def _read(path: Path, manifest: Manifest, plan: Blueprint) -> StoredWeights:
    """The weights, still to be hashed."""
    try:
        weights = StoredWeights.read(path, plan.groups(entries_of(path)))
        stored = weights.tensors
        state = {**stored, **{name: stored[same] for name, same in plan.ties.items()}}
        check_weights(state, manifest)
        check_dtype(state, manifest)
    except (KeyError, ValueError) as error:
        # That somebody has changed it says more.
        manifest.check_hash(path.parent, path.name, file_sha256(path))
        raise ValueError(f"a saved decoder's weights must fit its {NAME}: {error}") from error
    return weights


def _built(
    manifest: Manifest,
    contents: Mapping[str, bytes],
    weights: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> "PreTrainedModel":
    """The model, from what was read when the decoder was loaded: the folder may be gone."""
    with tempfile.TemporaryDirectory() as place:
        for name in _CONFIGS:
            if name in contents:
                (Path(place) / name).write_bytes(contents[name])
        return build_model(Path(place), manifest, weights, buffers)
