"""
Package names that are imported on first access.

A program uses a dozen of the parts. Creating their classes takes time, and importing all of them
took several times as long as importing those that are used.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """
    The ``__getattr__`` and ``__dir__`` of a *package* (PEP 562), and its ``__all__``.

    The names are those that its ``__init__`` imports under ``if TYPE_CHECKING``, where type checkers
    read them too (``from .module import X as X``).

    Args:
        package: Its ``__name__``.

        file: Its ``__file__``.
    """
    homes = dict(_type_checking_imports(Path(file)))

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # A name of "." is a module of the package.
        if homes[name] == ".":
            found: Any = import_module(f".{name}", package)
        else:
            found = getattr(import_module(homes[name], package), name)
        # Cache it: __getattr__ runs once per name.
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names, sorted(homes)


def _type_checking_imports(file: Path) -> Iterator[tuple[str, str]]:
    """Each name imported under ``if TYPE_CHECKING`` in *file*, and its module, as in ``from``."""
    for block in ast.parse(file.read_bytes()).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                if isinstance(statement, ast.ImportFrom):
                    module = "." * statement.level + (statement.module or "")
                    yield from ((alias.name, module) for alias in statement.names)
