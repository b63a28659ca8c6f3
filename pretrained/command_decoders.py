"""Decoders of the commands: saved ones, or compiled once and kept in a folder."""

import argparse
import sys
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ..decoding.protocols import DecoderShape
from ..neuron_backend import load_decoder
from ..neuron_backend.artifacts.manifest import Manifest
from ..neuron_backend.compilation import check_shapes
from ..neuron_backend.kv_cache.shapes import default_max_length
from ..neuron_backend.models.gguf_file import is_gguf
from ..neuron_backend.models.gguf_header import read_header
from ..neuron_backend.models.model_source import check_model, config_of, find_config
from ..neuron_backend.progress_option import ProgressOption
from ..neuron_backend.serialization.saved_manifest import saved_manifest
from ..neuron_backend.targets.registry import NAMES, resolve
from .kept_decoders import compile_and_keep, kept_folder, load_kept, with_target

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PROMPT_WIDTH = 64
"""Width of a prefill forward."""

_OF_COMPILED = ("dtype", "weights", "target", "max_length", "widths")
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
    saved = _manifest(source)
    if saved is None:
        # A single word may be a drafter's, misspelt.
        word = flag == "--draft" and not Path(source).exists() and "/" not in source
        name = "--draft, if neither lookup nor suffix," if word else flag
        if Path(source).exists():
            check_model(source, name)
        else:
            # A hub id may name nothing.
            find_config(source, name)
        return
    known = _compiled_with(saved)
    # A draft model has widths of its own.
    names = [name for name in _OF_COMPILED if flag != "--draft" or name != "widths"]
    for name in names:
        value = vars(options)[name]
        if value is not None and not _repeats(value, known.get(name)):
            has = f" with {known[name]}" if known.get(name) is not None else ""
            named = f"--{name.replace('_', '-')}"
            raise ValueError(f"{named} cannot be changed: {flag} {source} is a saved decoder{has}")


def _repeats(value: Any, known: Any) -> bool:
    """Whether the *value* of a flag leaves open or says what is *known* of a saved decoder."""
    is_family = value == "neuron" and str(known).startswith("neuron-")
    return value in (known, "auto") or is_family


def _manifest(source: str) -> Manifest | None:
    """The manifest of a saved decoder, local or on the hub; None for a model."""
    found = saved_manifest(source)
    return None if found is None else found[1]


def _compiled_with(manifest: Manifest) -> dict[str, Any]:
    """The options of a saved decoder, by name."""
    return {
        "dtype": manifest.dtype,
        "target": manifest.target,
        "max_length": manifest.shape.max_length,
        "widths": list(manifest.shape.widths),
        "weights": next(iter(manifest.quantized.values()), None),
    }


@attrs.frozen(kw_only=True)
class DecoderSource:
    """Where a decoder comes from: loaded if it is saved, or was compiled for these options before."""

    options: argparse.Namespace
    """The command's."""

    source: str
    """A folder, a hub id, a GGUF file or a saved decoder."""

    flag: str
    """Its flag, for messages."""

    widths: Collection[int]
    """Columns of the forwards; cut at the cache's length."""

    scored_width: int = 1
    """As of ``compile_decoder``."""

    batch_size: int = 1
    """Rows."""

    def check(self) -> None:
        """
        Check the shape before anything is loaded; of the model in a GGUF file, its positions are not known.

        Raises:
            ValueError: A saved decoder has fewer rows or scores fewer columns; a model has fewer positions.
        """
        if self._saved is not None:
            self._check_saved(self._saved.shape)
        elif (config := self._config) is not None:
            given = self._arguments
            names = ("batch_size", "max_length", "widths", "scored_width")
            try:
                check_shapes(config, resolve(given["target"]), **{name: given[name] for name in names})
            except ValueError as error:
                raise ValueError(f"{self.flag} {self.source}: {error}") from error

    @property
    def rows(self) -> int:
        """Rows of a forward."""
        return self.batch_size if self._saved is None else self._saved.shape.batch_size

    @property
    def positions(self) -> int | None:
        """Positions of a row; None where the model, in a GGUF file, decides and was not read."""
        if self._saved is not None:
            return self._saved.shape.max_length
        if self.options.max_length is not None:
            return int(self.options.max_length)
        return None if self._config is None else default_max_length(self._config)

    @property
    def vocab_size(self) -> int | None:
        """Logits of a column; None if a GGUF file does not say."""
        if self._saved is not None:
            return self._saved.shape.vocab_size
        if is_gguf(self.source) and Path(self.source).is_file():
            return read_header(self.source).vocab_size
        return None if self._config is None else int(self._config.get_text_config(decoder=True).vocab_size)

    def load(self) -> Any | None:
        """The decoder, if it need not be compiled."""
        if self._saved is not None:
            decoder = load_decoder(self.source, progress=self._progress)
            decoder.threads = self.options.threads
            return decoder
        return load_kept(self._kept_folder, self._arguments)

    def load_or_compile(self, tokenizer: Any = None) -> Any:
        """
        The decoder, which is kept if it is compiled.

        Args:
            tokenizer: The source's, which is kept with it. None: it is read from the source.
        """
        loaded = self.load()
        if loaded is not None:
            return loaded
        return compile_and_keep(self.source, self._arguments, self._kept_folder, self.say, tokenizer)

    def say(self, line: str) -> None:
        """Write *line* about it to standard error, unless the command is to be quiet."""
        if not self.options.quiet:
            print(line, file=sys.stderr)

    @cached_property
    def _saved(self) -> Manifest | None:
        """Asked for once: of a name on the hub it is a request."""
        return _manifest(self.source)

    @cached_property
    def _config(self) -> "PretrainedConfig | None":
        """Read once, likewise; None of a GGUF file."""
        return config_of(self.source)

    @property
    def _progress(self) -> ProgressOption:
        return False if self.options.quiet else None

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        """Those of ``compile_decoder``. A target is chosen once: that there is no compiler is said then."""
        options = self.options
        # Those that the user gives are not cut, but refused.
        own = self.widths is not options.widths
        longest = (self.positions if own else None) or max(self.widths)
        return with_target(
            {
                "batch_size": self.batch_size,
                "max_length": options.max_length,
                "widths": sorted({min(width, longest) for width in self.widths}),
                "scored_width": min(self.scored_width, longest),
                "dtype": options.dtype,
                "weights": options.weights,
                "target": options.target,
                "threads": options.threads,
                "progress": self._progress,
            }
        )

    @property
    def _kept_folder(self) -> Path:
        return kept_folder(self.source, self._arguments, self.options.cache)

    def _check_saved(self, shape: DecoderShape) -> None:
        if shape.batch_size < self.batch_size and self.flag == "--draft":
            raise ValueError(
                f"--draft must have at least {self.batch_size} rows, those of --model: {self.source} has "
                f"{shape.batch_size}"
            )
        if shape.batch_size < self.batch_size:
            raise ValueError(
                f"--num-samples must be at most {shape.batch_size}, the rows of {self.flag} {self.source}: "
                f"got {self.batch_size}"
            )
        if shape.scored_width < self.scored_width:
            raise ValueError(
                f"a draft needs forwards that score at least {self.scored_width} columns: {self.flag} "
                f"{self.source} scores {shape.scored_width}"
            )
