"""Decoders of the commands: saved ones, or compiled once and kept in a folder."""

import argparse
import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..decoding.user_cache import cache_folder
from ..neuron_backend import compile_decoder, load_decoder
from ..neuron_backend.artifacts.manifest import NAME, Manifest
from ..neuron_backend.models.gguf_file import is_gguf
from ..neuron_backend.models.model_source import check_model, find_config
from ..neuron_backend.progress_option import ProgressOption
from ..neuron_backend.targets.registry import NAMES
from .from_files import is_saved_decoder

PROMPT_WIDTH = 64
"""Width of a prefill forward."""

_OF_COMPILED = ("dtype", "weights", "target", "max_length", "widths", "threads")
"""Options that a saved decoder has already, and that may only repeat what it has."""


def check_source(options: argparse.Namespace, source: str, flag: str) -> None:
    """
    Check that *source*, the value of *flag*, is a model or a saved decoder that *options* fit.

    Raises:
        ValueError: An option cannot be changed, or the target is unknown.

        FileNotFoundError: There is no such model.
    """
    target = options.target
    if target is not None and target not in NAMES:
        raise ValueError(f"--target must be one of {', '.join(NAMES)}: got {target}")
    if not is_saved_decoder(source):
        # A single word may be a drafter's, misspelt.
        word = flag == "--draft" and not Path(source).exists() and "/" not in source
        name = "--draft, if neither lookup nor suffix," if word else flag
        if Path(source).exists():
            check_model(source, name)
        else:
            # A hub id may name nothing.
            find_config(source, name)
        return
    values = vars(options)
    given = [name for name in _OF_COMPILED if values[name] is not None]
    known = _compiled_with(Path(source)) if given and Path(source).exists() else {}
    for name in given:
        if values[name] not in (known.get(name), "auto"):
            has = f" with {known[name]}" if name in known else ""
            named = f"--{name.replace('_', '-')}"
            raise ValueError(f"{named} cannot be changed: {flag} {source} is a saved decoder{has}")


def _compiled_with(folder: Path) -> dict[str, Any]:
    """The options of the saved decoder in *folder*, by name."""
    manifest = Manifest.read(folder)
    return {
        "dtype": manifest.dtype,
        "target": manifest.target,
        "max_length": manifest.shape.max_length,
        "widths": list(manifest.shape.widths),
    }


def decoder_of(
    options: argparse.Namespace,
    source: str,
    flag: str,
    *,
    widths: Collection[int],
    scored_width: int = 1,
    batch_size: int = 1,
) -> Any:
    """
    The decoder of *source*: loaded if it is saved, or was compiled for these options before.

    Args:
        options: The command's.

        source: A folder, a hub id, a GGUF file or a saved decoder.

        flag: Its flag, for messages.

        widths: Columns of the forwards; cut at the cache's length.

        scored_width: As of ``compile_decoder``.

        batch_size: Rows.

    Raises:
        ValueError: A saved decoder has fewer rows or scores fewer columns.
    """
    progress: ProgressOption = False if options.quiet else None
    if is_saved_decoder(source):
        decoder = load_decoder(source, progress=progress)
        _check_saved(decoder, source, flag, batch_size, scored_width)
        return decoder
    longest = options.max_length or max(widths)
    arguments = {
        "batch_size": batch_size,
        "max_length": options.max_length,
        "widths": sorted({min(width, longest) for width in widths}),
        "scored_width": scored_width,
        "dtype": options.dtype,
        "weights": options.weights,
        "target": options.target or "auto",
        "threads": options.threads,
    }
    return _kept(options, source, flag, arguments, progress)


def _check_saved(decoder: Any, source: str, flag: str, rows: int, columns: int) -> None:
    shape = decoder.shape
    if shape.batch_size < rows:
        raise ValueError(
            f"--num-samples must be at most {shape.batch_size}, the rows of {flag} {source}: got {rows}"
        )
    if shape.scored_width < columns:
        raise ValueError(
            f"a draft needs forwards that score at least {columns} columns: {flag} {source} scores "
            f"{shape.scored_width}"
        )


def _kept(
    options: argparse.Namespace, source: str, flag: str, arguments: dict[str, Any], progress: Any
) -> Any:
    """The decoder from the folder of compiled decoders, or compiled and kept there."""
    cache = options.cache or cache_folder() / "decoders"
    folder = cache / _key(source, flag, arguments)
    eager = arguments["target"] == "eager"
    if not eager and (folder / NAME).exists():
        # One of another torch version, or a modified one, is compiled again.
        with contextlib.suppress(ValueError):
            return load_decoder(folder, progress=progress)
        shutil.rmtree(folder)
    if not options.quiet:
        kept = "" if eager else f" (compiled once, kept in {cache})"
        print(f"preparing {source}{kept}", file=sys.stderr)
    decoder = compile_decoder(source, **arguments, progress=progress)
    if decoder.target != "eager":
        try:
            decoder.save(folder)
        except OSError as error:
            print(f"not kept, to be compiled again next time: {error}", file=sys.stderr)
    return decoder


def _key(source: str, flag: str, arguments: dict[str, Any]) -> str:
    """Name in the cache for the model in its current state, compiled with *arguments*."""
    if is_gguf(source):
        path = Path(source).absolute()
        files = [path]
    else:
        path = find_config(source, flag).absolute().parent
        # A hub snapshot is identified by its commit, and its files may still be downloading.
        files = [] if path.parent.name == "snapshots" else sorted(path.iterdir())
    state = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    known = json.dumps([str(path), state, arguments], sort_keys=True)
    return f"{path.name}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
