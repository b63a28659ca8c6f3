"""``python -m decodekit compile``: a model compiled into a folder, for ``load_decoder``."""

import argparse
import shlex
import sys
from typing import Any

from .compilation import compile_decoder
from .serialization.saving import checked_folder
from .targets.registry import resolve
from .targets.target import TakesCompilerArguments


def compile_to_folder(options: argparse.Namespace) -> int:
    """Compile the model that *options* name and save it with its tokenizer."""
    target = resolve(options.target)
    if options.compiler_args is not None:
        if not isinstance(target, TakesCompilerArguments):
            raise ValueError(
                "--compiler-args are neuronx-cc's, for a Neuron target: "
                f"got {options.compiler_args!r} for target {target.name!r}"
            )
        target = target.with_compiler_args(shlex.split(options.compiler_args))
    arguments: dict[str, Any] = {
        "batch_size": options.batch_size,
        "max_length": options.max_length,
        "widths": options.widths,
        "tree_widths": options.tree_widths or (),
        "row_widths": options.row_widths,
        "copies_rows": options.copies_rows or None,
        "target": target,
        "dtype": options.dtype,
        "weights": options.weights,
        "tp_degree": options.tp_degree,
        "progress": False if options.quiet else None,
    }
    # Before minutes of compiling.
    checked_folder(options.output)
    if not options.quiet:
        print(f"compiling {options.model} for target {target.name!r}", file=sys.stderr)
    decoder = compile_decoder(options.model, **arguments)
    decoder.save(options.output)
    if decoder.ranks is None or decoder.ranks.rank == 0:
        print(f"{decoder}\nsaved in {options.output}: load_decoder({str(options.output)!r})", file=sys.stderr)
    return 0
