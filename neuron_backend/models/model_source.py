"""Where a model comes from, and what is said where there is none."""

import os
from os import PathLike
from pathlib import Path

_CONFIG = "config.json"


def check_model(model: object, name: str = "'model'") -> None:
    """
    Refuse what is neither a model nor a place where one could be.

    Args:
        model: A model, or a path or hub id.

        name: What the caller knows *model* by.

    Raises:
        TypeError: It is something else, or the class of a model.

        FileNotFoundError: It is a path, but not that of a folder with a model, nor a hub id.
    """
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        return
    if not isinstance(model, str | PathLike):
        raise TypeError(
            f"{name} must be a Hugging Face causal LM, or the path or hub id of one: got {model!r}"
        )
    path = Path(os.fspath(model))
    if path.is_dir():
        if not (path / _CONFIG).is_file():
            raise FileNotFoundError(f"{name} must be a folder with a {_CONFIG}: got {str(model)!r}, without")
    elif path.exists():
        raise FileNotFoundError(f"{name} must be a folder, or a hub id: got the file {str(model)!r}")
    elif not is_hub_id(str(model)):
        raise FileNotFoundError(
            f"{name} must be a folder, or a hub id such as 'user/name': got {str(model)!r}, which is "
            "neither: there is no such folder"
        )


def find_config(path: str | PathLike[str], name: str) -> Path:
    """
    The ``config.json`` of a model, from the hub if there is no such folder.

    Args:
        path: Of a folder, or a hub id.

        name: What the caller knows *path* by.

    Raises:
        FileNotFoundError: As :func:`check_model`; or the hub gives none.
    """
    from transformers.utils.hub import cached_file

    check_model(path, name)
    try:
        return Path(str(cached_file(str(path), _CONFIG)))
    except OSError as error:
        raise not_found(path, name, error) from error


def not_found(path: str | PathLike[str], name: str, error: OSError) -> FileNotFoundError:
    """What to raise where the hub gives no model, for that *error*."""
    return FileNotFoundError(
        f"{name} must be a folder, or the id of a model on the hub: got {str(path)!r}; no folder is "
        f"called so, and the hub, or its cache where it is out of reach, has no such model: {error}"
    )


def is_hub_id(name: str) -> bool:
    """Whether a repository of the hub could be called so."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented to be there

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
