"""Where decodekit keeps what it makes for this machine."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$DECODEKIT_CACHE``, or else ``$XDG_CACHE_HOME/decodekit``, or else ``~/.cache/decodekit``."""
    own = os.environ.get("DECODEKIT_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(cache) / "decodekit"
