"""Decoders that are compiled once and kept in a folder."""

import contextlib
import functools
import hashlib
import inspect
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .. import __version__, neuron_backend
from ..decoding.file_digest import file_sha256
from ..decoding.user_cache import cache_folder
from ..decoding.validation import is_iterable, is_whole
from ..neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from ..neuron_backend.artifacts.machine import cpu_family, instruction_sets
from ..neuron_backend.artifacts.manifest import NAME
from ..neuron_backend.models.model_source import find_config
from ..neuron_backend.serialization.replaced_folder import folder_identity
from ..neuron_backend.targets.cpu.instruction_limit import instruction_limit
from ..neuron_backend.targets.registry import resolve
from ..neuron_backend.threads import check_threads

_LOG = logging.getLogger(__name__)

_OF_THE_RUN = ("progress", "threads")
"""Options that change nothing of what is kept."""

_BACKEND = Path(inspect.getfile(neuron_backend)).parent

_DEFAULTS = {name: option.default for name, option in inspect.signature(compile_decoder).parameters.items()}


def with_target(options: Mapping[str, Any]) -> dict[str, Any]:
    """
    *options* of ``compile_decoder`` with the name of the target that "auto" is on this machine.

    It may log a warning, and so is to be found once.

    Raises:
        ValueError: No target has that name.
    """
    target = options.get("target") or "auto"
    return {**options, "target": resolve(target).name if isinstance(target, str) else target}


def kept_folder(
    source: str | os.PathLike[str],
    options: Mapping[str, Any],
    cache: str | os.PathLike[str] | None = None,
) -> Path:
    """
    The folder of the decoder of *source*, which need not be there.

    It is another one for another state of the model's files, other options, another processor, another
    version of torch, transformers or decodekit, and other sources of decodekit's backend.

    Args:
        source: The folder or hub id of a model, or a GGUF file.

        options: Those of ``compile_decoder`` by name; values and not objects.

        cache: Where decoders are kept. None: ``decoders`` in
            :func:`~decodekit.decoding.user_cache.cache_folder`.

    Raises:
        TypeError: A value of *options* has no text that tells it from others.

        ValueError: The decoder is divided over cores or processes, there is no such target, or
            ``$DECODEKIT_MAX_CPU_ISA`` is none of its values.

        FileNotFoundError: There is no such model, or *cache* is None and there is no home for the cache.
    """
    if options.get("tp_degree", 1) != 1:
        raise ValueError(
            f"'cache' keeps no decoders that are divided; save() does: got tp_degree={options['tp_degree']}"
        )
    return (cache_folder() / "decoders" if cache is None else Path(cache)) / _name(source, options)


def load_kept(kept: Path, options: Mapping[str, Any]) -> CompiledDecoder | None:
    """
    The decoder in the folder *kept*; None if it is not there, cannot be read, or was damaged.

    Args:
        kept: What :func:`kept_folder` says.

        options: Those of ``compile_decoder`` by name, of which *progress* and *threads* count.

    Raises:
        ValueError: A wrong number of threads.
    """
    check_threads(options.get("threads"))
    with contextlib.suppress(ValueError, OSError):
        if not (kept / NAME).exists():
            return None
        decoder = load_decoder(kept, progress=options.get("progress"))
        decoder.threads = options.get("threads")
        return decoder
    return None


def compile_and_keep(
    source: str | os.PathLike[str],
    options: Mapping[str, Any],
    kept: Path,
    say: Callable[[str], None] = _LOG.info,
    tokenizer: Any = None,
) -> CompiledDecoder:
    """
    Compile *source*, and save the decoder in the folder *kept* unless it is eager.

    Args:
        source: As of :func:`kept_folder`.

        options: Those of ``compile_decoder`` by name.

        kept: What :func:`kept_folder` says.

        say: Receives a line about what is done.

        tokenizer: The source's, which is saved too. None: it is read from *source*.
    """
    eager = options.get("target") == "eager"
    say(f"preparing {source}" + ("" if eager else f" (compiled once, kept in {kept.parent})"))
    before = folder_identity(kept)
    decoder = compile_decoder(source, **options)
    # Otherwise another process has kept its own meanwhile.
    if decoder.target != "eager" and folder_identity(kept) in (None, before):
        # Of a damaged one.
        shutil.rmtree(kept, ignore_errors=True)
        try:
            decoder.save(kept, tokenizer)
        except (OSError, ValueError) as error:
            _LOG.warning("not kept, to be compiled again next time: %s", error)
    return decoder


def _name(source: str | os.PathLike[str], options: Mapping[str, Any]) -> str:
    """Name of the folder for the model in its current state, compiled with *options*."""
    if Path(source).is_file():
        path = Path(source).absolute()
        files = [path]
    else:
        path = find_config(source, "'model'").absolute().parent
        # A hub snapshot is identified by its commit, and its files may still be downloading.
        files = sorted(path.iterdir()) if Path(source).exists() else []
    state = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    named = with_target(options)
    plain = {name: _plain(name, value) for name, value in named.items() if name not in _OF_THE_RUN}
    given = {name: value for name, value in plain.items() if value != _plain(name, _DEFAULTS[name])}
    # transformers, whose module of the model was compiled, is not imported for its version.
    versions = [torch.__version__, version("transformers"), __version__, _sources_digest()]
    processor = [cpu_family(), instruction_sets(), instruction_limit()]
    known = json.dumps([str(path), state, given, versions, processor], sort_keys=True)
    return f"{path.name}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"


@functools.cache
def _sources_digest() -> str:
    """Digest of the sources that decide what a decoder computes; one version may have had others."""
    known = hashlib.sha256()
    for file in sorted(_BACKEND.rglob("*")):
        # Bytecode differs by the interpreter alone.
        if file.is_file() and "__pycache__" not in file.parts:
            known.update(repr((str(file.relative_to(_BACKEND)), file_sha256(file))).encode())
    return known.hexdigest()


def _plain(name: str, value: Any) -> Any:
    """*value* as JSON has it."""
    if isinstance(value, torch.dtype | str):
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, bool):
        return value
    if is_whole(value):
        return int(value)
    several = list(value) if is_iterable(value) else [value]
    if not all(map(is_whole, several)):
        raise TypeError(
            f"'{name}' must be a name or whole numbers where the decoder is kept (cache=): got {value!r}; "
            "save() and from_pretrained(folder) keep any decoder"
        )
    return [int(each) for each in several]
