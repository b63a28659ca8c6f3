"""transformers without its progress bars: a decoder's own progress says what is loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...decoding.fork_safe_lock import fork_safe_lock

_setting = fork_safe_lock()
_blocks = 0
"""Blocks of :func:`without_bars` that run, in any threads."""

_shown = True
"""Whether bars were shown before the first of them."""


@contextmanager
def without_bars() -> Iterator[None]:
    """
    Show no bar of transformers' checkpoints meanwhile.

    The setting is the process's: of several threads in such a block, the last restores what the first found.
    """
    global _blocks, _shown
    from transformers.utils import logging

    with _setting:
        if _blocks == 0:
            _shown = logging.is_progress_bar_enabled()
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped in transformers
        _blocks += 1
    try:
        yield
    finally:
        with _setting:
            _blocks -= 1
            if _blocks == 0 and _shown:
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
