"""Validation of a model argument: a model, a folder with one, a GGUF file, or a hub id."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from .gguf_file import check_gguf, is_gguf

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

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


def config_of(model: "PreTrainedModel | str | PathLike[str]") -> "PretrainedConfig | None":
    """
    The config of a model that :func:`check_model` accepts.

    None of a GGUF file, which takes seconds to read, and of a config that transformers does not know: what
    loads the model says why.

    Raises:
        FileNotFoundError: The hub has no such model.

        OSError: The file cannot be read.
    """
    if not isinstance(model, str | PathLike):
        return model.config
    if is_gguf(model) and Path(model).is_file():
        return None
    # Imported here: it takes seconds.
    from transformers import AutoConfig

    try:
        with not_found_by_name(model, "'model'"):
            found: PretrainedConfig = AutoConfig.from_pretrained(str(model), trust_remote_code=False)
    except ValueError:
        return None
    return found


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
    with not_found_by_name(path, name):
        return Path(str(cached_file(str(path), _CONFIG)))


class RemoteCodeError(ValueError):
    """A model or a tokenizer needs code that its repository brings."""


@contextmanager
def without_remote_code(path: str | PathLike[str]) -> Iterator[None]:
    """
    Say what to do where a repository brings code of its own, which transformers refuses in the block.

    Raises:
        RemoteCodeError: It does.
    """
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise RemoteCodeError(
            f"{str(path)!r} must need no code of its own, which is not run: load it with transformers, whose "
            "trust_remote_code=True runs it, and pass the object"
        ) from error


@contextmanager
def not_found_by_name(path: str | PathLike[str], name: str) -> Iterator[None]:
    """
    Say of which argument *path* is, if it is no folder and the block does not find it on the hub.

    Raises:
        FileNotFoundError: Where the block raises an OSError, and there is no such path.
    """
    try:
        yield
    except OSError as error:
        if Path(path).exists():
            raise
        hint = " (of a repository of GGUF files, download one and give its path)"
        raise FileNotFoundError(
            f"{name} must be a folder, or the id of a model on the hub: got {str(path)!r}; no folder is "
            "called so, and the hub, or its cache where it is out of reach, has no such model in "
            f"transformers' format{hint if 'gguf' in str(path).lower() else ''}: {error}"
        ) from error


def is_on_hub(
    repository: str, file: str, *, revision: str | None = None, token: str | bool | None = None
) -> bool:
    """
    Whether the hub, or its cache where it is out of reach, has *file* in *repository*.

    Args:
        repository: Its id.

        file: Path in it.

        revision: A branch, tag or commit. None: the main branch.

        token: For private repositories. None: the one that is logged in.
    """
    from transformers.utils.hub import cached_file

    if not is_hub_id(repository):
        return False
    try:
        found = cached_file(
            repository,
            file,
            revision=revision,
            token=token,
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
