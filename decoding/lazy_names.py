"""
Names of a package that are imported when somebody asks for them.

A program uses a dozen of the parts that there are. Each is a module whose classes take time to
make, and all of them together took top_choices times as long to import as those that are used.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    The ``__getattr__`` and ``__dir__`` of a *package* (PEP 562).

    What type checkers are to see stands beside it, under ``if TYPE_CHECKING``.

    Args:
        package: Its ``__name__``.

        modules: A module, as ``from`` takes it, such as ``".top_k"``, to the names that come from
            it, with blanks between them.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name], package)
        # A name of "." is a module of the package.
        found = import_module(f".{name}", package) if homes[name] == "." else getattr(module, name)
        # So that nobody asks a second time.
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
