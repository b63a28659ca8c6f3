"""Decoders that are compiled once and kept in a folder."""

import contextlib
import hashlib
import inspect
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..decoding.user_cache import cache_folder
from ..neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from ..neuron_backend.artifacts.manifest import NAME
from ..neuron_backend.models.gguf_file import is_gguf
from ..neuron_backend.models.model_source import find_config
from ..neuron_backend.progress_option import ProgressOption

_LOG = logging.getLogger(__name__)

_DEFAULTS = {name: option.default for name, option in inspect.signature(compile_decoder).parameters.items()}


def kept_folder(
    source: str | os.PathLike[str],
    options: Mapping[str, Any],
    cache: str | os.PathLike[str] | None = None,
) -> Path:
    """
    The folder of the decoder of *source*, which need not be there.

    Args:
        source: The folder or hub id of a model, or a GGUF file.

        options: Those of ``compile_decoder`` by name, but for *progress*; values and not objects.

        cache: Where decoders are kept. None: ``decoders`` in
            :func:`~decodekit.decoding.user_cache.cache_folder`.

    Raises:
        TypeError: A value of *options* has no text that tells it from others.

        ValueError: The decoder is divided over processes.
    """
    if options.get("tp_degree", 1) != 1:
        raise ValueError(
            "'cache' keeps no decoders that are divided over processes; save() does: "
            f"got tp_degree={options['tp_degree']}"
        )
    return (cache_folder() / "decoders" if cache is None else Path(cache)) / _name(source, options)


def kept_decoder(
    source: str | os.PathLike[str],
    options: Mapping[str, Any],
    kept: Path,
    progress: ProgressOption = None,
    say: Callable[[str], None] = _LOG.info,
) -> CompiledDecoder:
    """
    The decoder in the folder *kept*, compiled if it is not there.

    It is compiled again for another version of torch or decodekit. Eager decoders are not kept.

    Args:
        source: As of :func:`kept_folder`.

        options: As of :func:`kept_folder`.

        kept: What :func:`kept_folder` says.

        progress: As of ``compile_decoder``.

        say: Takes a line about what is done.
    """
    eager = options.get("target") == "eager"
    if not eager and (kept / NAME).exists():
        # One of another torch version, or a modified one, is compiled again.
        with contextlib.suppress(ValueError):
            return load_decoder(kept, progress=progress)
        shutil.rmtree(kept)
    say(f"preparing {source}" + ("" if eager else f" (compiled once, kept in {kept.parent})"))
    decoder = compile_decoder(source, **options, progress=progress)
    if decoder.target != "eager":
        try:
            decoder.save(kept)
        except OSError as error:
            say(f"not kept, to be compiled again next time: {error}")
    return decoder


def _name(source: str | os.PathLike[str], options: Mapping[str, Any]) -> str:
    """Name of the folder for the model in its current state, compiled with *options*."""
    if is_gguf(source):
        path = Path(source).absolute()
        files = [path]
    else:
        path = find_config(source, "model").absolute().parent
        # A hub snapshot is identified by its commit, and its files may still be downloading.
        files = [] if path.parent.name == "snapshots" else sorted(path.iterdir())
    state = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    given = {name: _plain(name, value) for name, value in options.items() if value != _DEFAULTS[name]}
    known = json.dumps([str(path), state, given], sort_keys=True)
    return f"{path.name}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"


def _plain(name: str, value: Any) -> Any:
    """*value* as JSON has it."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, str | int | None):
        return value
    try:
        return [int(each) for each in value]
    except TypeError:
        raise TypeError(
            f"'{name}' must be a name or numbers where the decoder is kept (cache=): got {value!r}; "
            "save() and from_pretrained(folder) keep any decoder"
        ) from None
