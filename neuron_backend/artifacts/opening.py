"""
A decoder from a folder.

The architecture comes from config.json, the weights from safetensors; nothing is unpickled.
Programs are native code: they are run only if this machine compiled them or the caller trusts
them, and otherwise compiled again.
"""

from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor

from ...decoding.protocols import Processor, Selection
from ..parallel.cores import holders
from ..parallel.ranks import Ranks, naming_lost_ranks
from ..parallel.tensor_parallel import model_of
from ..static_decoder import StaticDecoder
from ..targets.target import RunsStored, Target, target_named
from ..weights import adopt, align, weight_dtype
from .manifest import NAME, Manifest
from .packages import Package
from .quantized_files import load_quantized
from .saved_model import check_weights, set_buffers
from .saving import BUFFERS, CONSTANTS, PROGRAMS
from .stored_decoder import stored_decoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def open_decoder(
    folder: Path,
    trust_programs: bool,
    processors: Processor | None,
    selection: Selection | None,
    target: Target | None,
) -> StaticDecoder:
    """
    The decoder that was saved in *folder*; arguments as for :func:`~.loading.load_decoder`.

    Raises:
        ValueError: Files, versions, processor or shapes do not match what was saved; or it was saved
            by several processes and there are not as many.
    """
    manifest = Manifest.read(folder)
    target = target_named(manifest.target) if target is None else target
    if target.name != manifest.target:
        raise ValueError(f"'target' must be the one that was saved, {manifest.target!r}: got {target.name!r}")
    target.check(manifest)
    if isinstance(target, RunsStored) and processors is None and selection is None:
        decoder = stored_decoder(folder, manifest, target, trust_programs)
        if decoder is not None:
            return decoder
    manifest.verify(folder)
    stored = load_file(folder / CONSTANTS)
    ranks, cores = holders(target, manifest.tp_degree)
    with naming_lost_ranks(ranks):
        decoder = _eager(folder, manifest, stored, ranks)
        decoder.cores = cores
        packages = _packages(folder, manifest, stored)
        if processors is not None or selection is not None:
            decoder.fuse(processors, selection)
        target.load(decoder, packages, trust_programs)
    return decoder


def saved_quantized(folder: str | PathLike[str]) -> "PreTrainedModel | None":
    """
    The model of a saved decoder whose weights are quantised; None if *folder* is none.

    Raises:
        ValueError: Files do not match what was saved.
    """
    folder = Path(folder)
    if not (folder / NAME).is_file():
        return None
    manifest = Manifest.read(folder)
    if not manifest.quantized:
        return None
    manifest.verify(folder)
    return _model(folder, manifest, load_file(folder / CONSTANTS), None)


def _eager(folder: Path, manifest: Manifest, stored: dict[str, Tensor], ranks: Ranks | None) -> StaticDecoder:
    model = _model(folder, manifest, stored, ranks)
    # Not compared with the stock model again: the hashes say that weights and programs are the
    # ones that were.
    decoder = StaticDecoder.unchecked(model, manifest.shape, manifest.tree_widths, manifest.spans)
    check_weights(decoder.step.model.state_dict(), manifest)
    return decoder


def _model(
    folder: Path, manifest: Manifest, stored: dict[str, Tensor], ranks: Ranks | None
) -> "PreTrainedModel":
    if manifest.quantized:
        dtype = weight_dtype(manifest.dtype) or torch.get_default_dtype()
        model = load_quantized(folder, manifest.quantized, dtype, manifest.attention)
    else:
        from transformers import AutoModelForCausalLM

        load = partial(
            AutoModelForCausalLM.from_pretrained,
            dtype=weight_dtype(manifest.dtype),
            attn_implementation=manifest.attention,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
        model = model_of(folder, load, ranks)
    model = adopt(model)
    align(model)
    found = {name: tensor for name, tensor in stored.items() if name.startswith(BUFFERS)}
    set_buffers(model, {name.removeprefix(BUFFERS): tensor for name, tensor in found.items()})
    return model


def _packages(folder: Path, manifest: Manifest, stored: dict[str, Tensor]) -> dict[str, Package]:
    """What the target has saved, by file name."""
    return {
        path.removeprefix(PROGRAMS): Package(
            content=(folder / path).read_bytes(),
            constants={
                key.removeprefix(f"{path}/"): tensor
                for key, tensor in stored.items()
                if key.startswith(f"{path}/")
            },
        )
        for path in manifest.files
        if path.startswith(PROGRAMS)
    }
