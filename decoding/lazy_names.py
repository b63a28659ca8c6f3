"""
Package names that are imported on first access.

A program uses a dozen of the parts. Creating their classes takes time, and importing all of them
took several times as long as importing those that are used.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """
    The ``__getattr__`` and ``__dir__`` of a *package* (PEP 562), and its ``__all__``.

    For type checkers, re-export the names under ``if TYPE_CHECKING`` as well (``import X as X``).

    Args:
        package: Its ``__name__``.

        modules: A module, as in ``from``, such as ``".top_k"``, to the names that come from
            it, separated by blanks.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name], package)
        # A name of "." is a module of the package.
        found = import_module(f".{name}", package) if homes[name] == "." else getattr(module, name)
        # Cache it: __getattr__ runs once per name.
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names, sorted(homes)
