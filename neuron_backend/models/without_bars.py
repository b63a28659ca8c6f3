"""transformers without its progress bars: a decoder's own progress says what is loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def without_bars() -> Iterator[None]:
    """Show no bar of transformers' checkpoints meanwhile."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped in transformers
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def without_gguf_bar() -> Iterator[None]:
    """Show no bar of transformers' conversion of GGUF files meanwhile, which follows no setting."""
    from transformers import modeling_gguf_pytorch_utils

    gguf_files: Any = modeling_gguf_pytorch_utils
    bar = getattr(gguf_files, "tqdm", None)
    if bar is None:
        yield
        return
    gguf_files.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        gguf_files.tqdm = bar
