"""Versions of packages that a saved decoder relies on, whatever its target."""

from importlib.metadata import version

from .manifest import Manifest


def check_transformers(manifest: Manifest) -> None:
    """
    Refuse another major version of transformers than that which the decoder was saved with.

    Configs, names of weights and forwards change between them.

    Raises:
        ValueError: It is another one.
    """
    saved = manifest.versions.get("transformers")
    if saved is None:
        return
    # A program without its model does not import transformers, which takes seconds.
    found = version("transformers")
    if _major(saved) != _major(found):
        raise ValueError(
            f"a decoder must be loaded with the major version of transformers that saved it, {saved}: "
            f"got {found}; compile_decoder() with the original model makes it again"
        )


def _major(number: str) -> str:
    return number.partition(".")[0]
