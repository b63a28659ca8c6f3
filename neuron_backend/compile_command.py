"""``python -m decodekit compile``: a model compiled into a folder, for ``load_decoder``."""

import argparse
import sys
from typing import Any

from .compilation import compile_decoder
from .targets.registry import resolve


def compile_to_folder(options: argparse.Namespace) -> int:
    """Compile the model that *options* name and save it with its tokenizer."""
    if resolve(options.target).name == "eager":
        raise ValueError(f"--target must be one that compiles: got {options.target}, which is 'eager' here")
    arguments: dict[str, Any] = {
        "batch_size": options.batch_size,
        "max_length": options.max_length,
        "widths": options.widths,
        "tree_widths": options.tree_widths or (),
        "target": options.target,
        "dtype": options.dtype,
        "weights": options.weights,
        "threads": options.threads,
        "progress": False if options.quiet else None,
    }
    decoder = compile_decoder(options.model, **arguments)
    decoder.save(options.output)
    print(f"{decoder}\nsaved in {options.output}: load_decoder({str(options.output)!r})", file=sys.stderr)
    return 0
