"""The registered module that makes a generator's arguments from a model's files."""

from importlib import import_module
from typing import Any, Protocol, cast

_registered: list[str] = []


class PretrainedLoader(Protocol):
    """The module that :func:`register_loader` names."""

    def generator_arguments(self, kind: type[Any], model: Any, **options: Any) -> dict[str, Any]:
        """Keyword arguments for a generator class *kind*, decoder included, from a model's files."""
        ...


def register_loader(module: str) -> None:
    """Register *module*, imported when it is first used, as a :class:`PretrainedLoader`."""
    _registered[:] = [module]


def pretrained_loader() -> PretrainedLoader:
    """The registered module."""
    return cast(PretrainedLoader, import_module(_registered[0]))
