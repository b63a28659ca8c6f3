"""transformers without its progress bars: a decoder's own progress says what is loaded."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any


@contextmanager
def without_bars() -> Iterator[None]:
    """Show no bar of transformers' meanwhile, neither for checkpoints nor for GGUF files."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    gguf_files: Any = modeling_gguf_pytorch_utils
    with ExitStack() as stack:
        if logging.is_progress_bar_enabled():
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped in transformers
            stack.callback(logging.enable_progress_bar)
        # This one follows no setting.
        if (bar := getattr(gguf_files, "tqdm", None)) is not None:
            gguf_files.tqdm = partial(bar, disable=True)
            stack.callback(setattr, gguf_files, "tqdm", bar)
        yield
