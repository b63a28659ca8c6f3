"""
Loading a saved decoder without building its model.

Programs take tensors by name, and the manifest's blueprint lists them. So a folder whose programs may
be run is loaded without the model library and without building a module. The model is built over the
same tensors when it is first used.
"""

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load
from torch import Tensor

from ...decoding.file_digest import file_sha256
from ..artifacts import trust
from ..artifacts.blueprint import Blueprint
from ..artifacts.file_hashes import check_hash, check_present, sha256
from ..artifacts.fingerprint import ModelFingerprint
from ..artifacts.manifest import BUFFERS, CONSTANTS, NAME, PROGRAMS, Manifest, weights_file
from ..artifacts.packages import packages_of, strip_prefix
from ..artifacts.stored_weights import StoredWeights, tensor_entries
from ..compiled_decoder import CompiledDecoder
from ..progress import Progress
from ..targets.target import RunsStored
from .saved_model import build_model, check_dtype, check_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CONFIGS = ("config.json", "generation_config.json")


def load_without_model(
    folder: Path, manifest: Manifest, target: RunsStored, trust_programs: bool, progress: Progress
) -> CompiledDecoder | None:
    """
    Load the decoder in *folder*; None if its model has to be built, or its programs compiled again.

    Its stages, and that of building the model later, are told to *progress*.

    Raises:
        ValueError: A file is missing, was changed, or does not fit the others.
    """
    plan, file = manifest.blueprint, weights_file(bool(manifest.quantized))
    if plan is None or manifest.tp_degree != 1:
        return None
    contents = _read_files(folder, manifest, file)
    programs = strip_prefix(PROGRAMS, contents)
    if not (trust_programs or all(map(trust.is_recorded, programs.values()))):
        return None
    if CONSTANTS not in contents:
        raise ValueError(f"a saved decoder must list each of its files: got no {CONSTANTS}")
    constants = load(contents[CONSTANTS])
    buffers = strip_prefix(BUFFERS, constants)
    weights = _read_weights(folder / file, manifest, plan)
    state = {**weights.tensors, **{name: weights.tensors[same] for name, same in plan.ties.items()}}
    decoder = CompiledDecoder.without_model(
        plan.geometry(manifest.shape.vocab_size),
        manifest.shape,
        manifest.tree_widths,
        manifest.spans,
        partial(_build, manifest, contents, weights.tensors, buffers),
    )
    decoder.progress, decoder.row_widths = progress, tuple(manifest.row_widths)
    with ThreadPoolExecutor(1) as executor:
        # Hash the weights while the programs are opened.
        digest = executor.submit(weights.sha256)
        target.load_stored(
            decoder,
            packages_of(programs, constants),
            ModelFingerprint.of_tensors(plan.architecture, plan.masks, state, buffers, plan.fused),
            {f"model.{name}": tensor for name, tensor in {**state, **buffers}.items()} | weights.fused,
        )
        check_hash(folder, file, manifest.files, digest.result())
    decoder.warm_up(decoder.spans[:1])
    return decoder


def _read_files(folder: Path, manifest: Manifest, weights: str) -> dict[str, bytes]:
    """Every file but the *weights*, with its hash checked."""
    found = {}
    for name in manifest.files:
        check_present(folder, name)
        if name != weights:
            found[name] = (folder / name).read_bytes()
            check_hash(folder, name, manifest.files, sha256(found[name]))
    return found


def _read_weights(path: Path, manifest: Manifest, plan: Blueprint) -> StoredWeights:
    """The weights, not hashed yet."""
    try:
        weights = StoredWeights.read(path, plan.groups(tensor_entries(path)))
        stored = weights.tensors
        state = {**stored, **{name: stored[same] for name, same in plan.ties.items()}}
        check_weights(state, manifest)
        check_dtype(state, manifest)
    except (KeyError, ValueError) as error:
        # A changed file is the better explanation.
        check_hash(path.parent, path.name, manifest.files, file_sha256(path))
        raise ValueError(f"a saved decoder's weights must fit its {NAME}: {error}") from error
    return weights


def _build(
    manifest: Manifest,
    contents: Mapping[str, bytes],
    weights: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> "PreTrainedModel":
    """Build the model from the files that were read on loading: the folder may be gone."""
    with tempfile.TemporaryDirectory() as configs:
        for name in _CONFIGS:
            if name in contents:
                (Path(configs) / name).write_bytes(contents[name])
        return build_model(Path(configs), manifest, weights, buffers)
