"""What torch says of itself while it exports and compiles."""

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def without_known_warnings() -> Iterator[None]:
    """Ignore, for as long as this lasts, what is no news to whoever has a decoder compiled."""
    with warnings.catch_warnings():
        # torch 2.13 uses two of its own deprecated interfaces.
        warnings.filterwarnings("ignore", r"`torch\.jit\.script_method` is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        yield
