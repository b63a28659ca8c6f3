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
from ..targets.target import RunsStored, Target, check_target, target_named
from ..weights import adopt, weight_dtype
from .hub import download_decoder, is_repository
from .manifest import NAME, Manifest
from .packages import Package
from .quantized_files import load_quantized
from .saved_model import check_weights, set_buffers
from .saving import BUFFERS, CONSTANTS, PROGRAMS
from .stored_decoder import stored_decoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_decoder(
    folder: str | PathLike[str],
    *,
    trust_programs: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    processors: Processor | None = None,
    selection: Selection | None = None,
    target: Target | None = None,
) -> StaticDecoder:
    """
    Load what :meth:`StaticDecoder.save` or :meth:`StaticDecoder.push_to_hub` wrote.

    Args:
        folder: The folder; or a repository of the hub, ``"user/name"``, if no folder is called so.

        trust_programs: Run its native code even if it was compiled elsewhere. Only for folders and
            repositories of people you would run a binary from.

        revision: Of a repository: a branch, tag or commit. None: the main branch.

        token: Of a repository that is private. None: the one that is logged in.

        processors: The chain that the saved decoder was compiled with, or one of equal parameters,
            to have the forwards that choose back. Those of another chain are left alone, and
            :meth:`StaticDecoder.explain` says that there are none.

        selection: The selection that it was compiled with, likewise.

        target: With options of its own, and of the name that the decoder was saved with. None:
            that one with its defaults.

    Returns:
        A decoder that gives the saved one's logits. Its ``compiled`` says whether the
        programs were compiled again, because this machine does not know them.

    Raises:
        ValueError: Files, versions, processor or shapes do not match what was saved; there is no
            such repository; or it was saved by several processes and there are not as many.

        TypeError: *trust_programs* is no bool, or *target* no target.

        FileNotFoundError: The hub cannot be reached, and its cache has not got the repository.
    """
    if not isinstance(trust_programs, bool):
        raise TypeError(f"'trust_programs' must be True or False: got {trust_programs!r}")
    if target is not None:
        check_target(target)
    folder = _local(folder, revision, token)
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


def _local(folder: str | PathLike[str], revision: str | None, token: str | bool | None) -> Path:
    if is_repository(folder):
        return download_decoder(str(folder), revision=revision, token=token)
    for name, value in (("revision", revision), ("token", token)):
        if value is not None:
            raise ValueError(f"'{name}' must be None for a folder: got {value!r} for {folder}")
    return Path(folder)


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
