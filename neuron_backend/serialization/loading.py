"""
Loading a decoder from a folder or from a repository of the Hugging Face hub.

The architecture comes from config.json, the weights from safetensors; nothing is unpickled.
Programs are native code: they are run only if this machine compiled them or the caller trusts
them, and are compiled again otherwise.
"""

import os
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ...decoding.protocols import Processor, Sampler
from ..progress import Progress, stage
from ..progress_option import ProgressOption, progress_of
from ..targets.registry import target_named
from ..targets.target import RunsStored, Target, check_target

if TYPE_CHECKING:
    from ..compiled_decoder import CompiledDecoder


def load_decoder(
    folder: str | PathLike[str],
    *,
    trust_programs: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    processors: Processor | None = None,
    sampler: Sampler | None = None,
    target: Target | None = None,
    progress: ProgressOption = None,
) -> "CompiledDecoder":
    """
    Load a decoder that :meth:`CompiledDecoder.save` or :meth:`CompiledDecoder.push_to_hub` wrote.

    Args:
        folder: The folder; or a hub repository, ``"user/name"``, if there is no folder of that name.

        trust_programs: Run its native code even if it was compiled elsewhere. Only for folders and
            repositories of people you would run a binary from.

        revision: Branch, tag or commit of a repository. None: the main branch.

        token: Token for a private repository. None: the one that is logged in.

        processors: The chain that the saved decoder was compiled with, or one of equal parameters,
            to load its programs that sample on the device. Programs of another chain are ignored, and
            :meth:`CompiledDecoder.explain` says that there are none.

        sampler: The sampler that it was compiled with, likewise.

        target: A target with your own options, of the name that the decoder was saved with. None:
            that target with its defaults.

        progress: As for :func:`~decodekit.neuron_backend.compile_decoder`.

    Returns:
        A decoder that gives the saved one's logits; its ``tokenizer`` is the saved one, if any. Its
        ``compiled`` is True if the programs were compiled again because this machine did not compile them
        before.

    Raises:
        ValueError: Files, versions, CPU or shapes do not match what was saved; there is no such
            repository; or the number of processes differs from that of the saving ones.

        TypeError: *trust_programs* is not a bool, or *target* not a target.

        FileNotFoundError: The hub cannot be reached, and the repository is not in its cache.
    """
    if not isinstance(trust_programs, bool):
        raise TypeError(f"'trust_programs' must be True or False: got {trust_programs!r}")
    if target is not None:
        check_target(target)
    from .replaced_folder import read_unreplaced

    told = progress_of(progress)
    with stage(told, f"looking for {folder}"):
        local = _local(folder, revision, token)
    opened = partial(_open, local, trust_programs, processors, sampler, target, told)
    with stage(told, f"loading {folder}"):
        # Ranks load together: one that read again would wait for the others.
        return opened() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else read_unreplaced(local, opened)


def _local(folder: str | PathLike[str], revision: str | None, token: str | bool | None) -> Path:
    from .hub import download_decoder, is_repository
    from .replaced_folder import recover_folder

    recover_folder(Path(folder))
    if is_repository(folder):
        return download_decoder(str(folder), revision=revision, token=token)
    for name, value in (("revision", revision), ("token", token)):
        if value is not None:
            raise ValueError(f"'{name}' must be None for a folder: got {value!r} for {folder}")
    return Path(folder)


def _open(
    folder: Path,
    trust_programs: bool,
    processors: Processor | None,
    sampler: Sampler | None,
    target: Target | None,
    progress: Progress,
) -> "CompiledDecoder":
    # Imported here: importing load_decoder does not mean that it is called.
    from safetensors.torch import load_file

    from ..artifacts.file_hashes import check_files
    from ..artifacts.manifest import CONSTANTS, PROGRAMS, Manifest
    from ..artifacts.packages import packages_of
    from ..artifacts.versions import check_transformers
    from ..compiled_decoder import CompiledDecoder
    from ..tensor_parallel.cores import ranks_or_cores
    from ..tensor_parallel.lost_ranks import report_lost_ranks
    from .loading_without_model import load_without_model
    from .saved_model import check_weights, saved_model

    manifest = Manifest.read(folder)
    target = target_named(manifest.target) if target is None else target
    if target.name != manifest.target:
        raise ValueError(f"'target' must be the one that was saved, {manifest.target!r}: got {target.name!r}")
    target.check(manifest)
    check_transformers(manifest)
    can_sample = processors is not None or sampler is not None
    if isinstance(target, RunsStored) and not can_sample:
        decoder = load_without_model(folder, manifest, target, trust_programs, progress)
        if decoder is not None:
            decoder.source = folder.absolute()
            decoder.offer_copies(target, manifest.copies_rows)
            return decoder
    check_files(folder, manifest.files)
    stored = load_file(folder / CONSTANTS)
    ranks, cores = ranks_or_cores(target, manifest.tp_degree)
    with report_lost_ranks(ranks):
        model = saved_model(folder, manifest, stored, ranks)
        # Not compared with the stock model again: the hashes match those of the compared decoder.
        decoder = CompiledDecoder.unchecked(model, manifest.shape, manifest.tree_widths, manifest.spans)
        check_weights(decoder.step.model.state_dict(), manifest)
        decoder.cores, decoder.progress, decoder.source = cores, progress, folder.absolute()
        decoder.offer_rows(manifest.row_widths)
        decoder.offer_copies(target, manifest.copies_rows)
        programs = {
            path.removeprefix(PROGRAMS): (folder / path).read_bytes()
            for path in manifest.files
            if path.startswith(PROGRAMS)
        }
        if can_sample:
            decoder.fuse(processors, sampler)
        target.load(decoder, packages_of(programs, stored), trust_programs)
    return decoder
