"""Definitions taken out of a source file, without importing its package."""

import __future__

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def take(path: Path, *names: str, **given: Any) -> SimpleNamespace:
    """
    Run the definitions of *names* at the top level of a file, and nothing else of it.

    Annotations are not evaluated.

    Args:
        path: The file.

        names: Functions, classes and constants, in any order.

        given: The globals that they use: what the file imports, or a stub of it.

    Raises:
        LookupError: The file does not define one of *names*.
    """
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if _names(node) & set(names)]
    if missing := set(names) - {name for node in tree.body for name in _names(node)}:
        raise LookupError(f"{path} does not define {sorted(missing)}")
    code = compile(tree, path, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    members: dict[str, Any] = {"__name__": path.stem, **given}
    exec(code, members)
    return SimpleNamespace(**{name: members[name] for name in names})


def _names(node: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()
