"""Validation of a model argument: a model, a folder with one, a GGUF file, or a hub id."""

import os
from os import PathLike
from pathlib import Path

from .gguf_file import check_gguf, is_gguf

_CONFIG = "config.json"


def check_model(model: object, name: str = "'model'") -> None:
    """
    Check that *model* is a model, a folder with a model, a GGUF file, or a hub id.

    Args:
        model: A model, a path or a hub id.

        name: Name of the argument in error messages.

    Raises:
        TypeError: It is of another type, or a model class.

        FileNotFoundError: It is neither a folder with a model, nor a GGUF file, nor a hub id.

        ValueError: It is called ``.gguf`` and is no GGUF file.

        ImportError: It is a GGUF file, and a package that reads it is missing.
    """
    if not isinstance(model, str | PathLike):
        # Imported here: it takes seconds.
        from transformers import PreTrainedModel

        if isinstance(model, PreTrainedModel):
            return
        raise TypeError(
            f"{name} must be a Hugging Face causal LM, or the path or hub id of one: got {model!r}"
        )
    path = Path(os.fspath(model))
    if is_gguf(model) and not path.is_dir():
        check_gguf(path, name)
    elif path.is_dir():
        if not (path / _CONFIG).is_file():
            raise FileNotFoundError(f"{name} must be a folder with a {_CONFIG}: got {str(model)!r}, without")
    elif path.exists():
        raise FileNotFoundError(f"{name} must be a folder, a GGUF file or a hub id: got {str(model)!r}")
    elif not is_hub_id(str(model)):
        raise FileNotFoundError(
            f"{name} must be a folder, or a hub id such as 'user/name': got {str(model)!r}, which is "
            "neither: there is no such folder"
        )


def find_config(path: str | PathLike[str], name: str) -> Path:
    """
    Path of a model's ``config.json``, downloaded from the hub if *path* is not a folder.

    Args:
        path: A folder or a hub id.

        name: Name of the argument in error messages.

    Raises:
        FileNotFoundError: As :func:`check_model`, or the hub has no such model.
    """
    from transformers.utils.hub import cached_file

    check_model(path, name)
    if is_gguf(path) and Path(path).is_file():
        raise FileNotFoundError(f"{name} must be a folder or a hub id, with a {_CONFIG}: got {str(path)!r}")
    try:
        return Path(str(cached_file(str(path), _CONFIG)))
    except OSError as error:
        raise model_not_found(path, name, error) from error


def model_not_found(path: str | PathLike[str], name: str, error: OSError) -> FileNotFoundError:
    """The error for a model that is neither in a folder nor on the hub, caused by *error*."""
    return FileNotFoundError(
        f"{name} must be a folder, or the id of a model on the hub: got {str(path)!r}; no folder is "
        f"called so, and the hub, or its cache where it is out of reach, has no such model: {error}"
    )


def is_on_hub(repository: str, file: str) -> bool:
    """Whether the hub, or its cache where it is out of reach, has *file* in *repository*."""
    from transformers.utils.hub import cached_file

    if not is_hub_id(repository):
        return False
    try:
        found = cached_file(
            repository,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
    except OSError:  # there is no such repository
        return False
    return found is not None


def is_hub_id(name: str) -> bool:
    """Whether *name* is a valid repository id of the hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented to be there

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
