"""A decoder from a folder, or from a repository of the hub."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ...decoding.protocols import Processor, Selection
from ..targets.target import Target, check_target

if TYPE_CHECKING:
    from ..static_decoder import StaticDecoder


def load_decoder(
    folder: str | PathLike[str],
    *,
    trust_programs: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    processors: Processor | None = None,
    selection: Selection | None = None,
    target: Target | None = None,
) -> "StaticDecoder":
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
    # A program that names this may well compile a decoder instead.
    from .opening import open_decoder

    return open_decoder(_local(folder, revision, token), trust_programs, processors, selection, target)


def _local(folder: str | PathLike[str], revision: str | None, token: str | bool | None) -> Path:
    from .hub import download_decoder, is_repository

    if is_repository(folder):
        return download_decoder(str(folder), revision=revision, token=token)
    for name, value in (("revision", revision), ("token", token)):
        if value is not None:
            raise ValueError(f"'{name}' must be None for a folder: got {value!r} for {folder}")
    return Path(folder)
