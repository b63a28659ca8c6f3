"""The manifest of a saved decoder, before the decoder is loaded."""

from pathlib import Path

from ..artifacts.manifest import NAME, Manifest
from ..models.model_source import is_on_hub


def saved_manifest(source: str) -> tuple[Path, Manifest] | None:
    """
    The manifest of a saved decoder, and the folder that has it; None for a model.

    Args:
        source: A path, or a repository of the hub, of which nothing else is downloaded. A path comes first.

    Raises:
        ValueError: The manifest is of another format, or was changed.
    """
    folder = Path(source)
    if not folder.exists() and is_on_hub(source, NAME):
        # Imported on demand: a path does not need it.
        from transformers.utils.hub import cached_file

        folder = Path(str(cached_file(source, NAME))).parent
    return (folder, Manifest.read(folder)) if (folder / NAME).is_file() else None
