"""Facts about a library's sources, each checked in the syntax tree of one function."""

import ast
from collections.abc import Callable

import attrs

from .checkouts import Checkout

Function = ast.FunctionDef
Check = Callable[[Function], bool]


@attrs.frozen
class Fact:
    """What one function of a library does; true of the commit that its checkout names."""

    checkout: Checkout
    file: str
    function: str
    """Name of the function, with its class."""

    says: str
    """The fact, as a sentence."""

    check: Check
    """Whether the function's syntax tree says so."""

    def __str__(self) -> str:
        return f"{self.checkout.name}, {self.file}, {self.function}: {self.says}"

    def holds(self) -> bool:
        """Whether the checkout says so; skips the test if it is absent."""
        body = ast.parse(self.checkout.file(self.file).read_text()).body
        *classes, name = self.function.split(".")
        for wanted in classes:
            body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == wanted)
        return any(isinstance(node, Function) and node.name == name and self.check(node) for node in body)


def has(*expressions: str) -> Check:
    """Each of *expressions* occurs in the function."""
    wanted = [_dump(ast.parse(expression, mode="eval").body) for expression in expressions]
    return lambda function: set(wanted) <= {_dump(node) for node in ast.walk(function)}


def takes(*names: str) -> Check:
    """The function's parameters begin with *names*, after ``self``."""

    def check(function: Function) -> bool:
        own = [argument.arg for argument in function.args.args if argument.arg != "self"]
        return own[: len(names)] == list(names)

    return check


def lacks(*names: str) -> Check:
    """None of *names* is a parameter of the function."""
    return lambda function: not {argument.arg for argument in function.args.args} & set(names)


def chooses(*branches: tuple[str | None, str]) -> Check:
    """
    One if/elif/else of the function has *branches* one after the other.

    Each is a condition, None for ``else``, and a name that the branch uses.
    """

    def check(function: Function) -> bool:
        chains = (_chain(node) for node in ast.walk(function) if isinstance(node, ast.If))
        return any(
            all(_branch(found, wanted) for found, wanted in zip(chain[at:], branches, strict=False))
            for chain in chains
            for at in range(len(chain) - len(branches) + 1)
        )

    return check


Branch = tuple[ast.expr | None, list[ast.stmt]]


def _chain(node: ast.If) -> list[Branch]:
    """The branches of an if/elif/else."""
    chain: list[Branch] = [(node.test, node.body)]
    if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        return chain + _chain(node.orelse[0])
    return [*chain, (None, node.orelse)] if node.orelse else chain


def _branch(found: Branch, wanted: tuple[str | None, str]) -> bool:
    test, name = wanted
    if test is None or found[0] is None:
        same = test is None and found[0] is None
    else:
        same = _dump(found[0]) == _dump(ast.parse(test, mode="eval").body)
    used = {
        getattr(node, "attr", None) or getattr(node, "id", None)
        for statement in found[1]
        for node in ast.walk(statement)
        if isinstance(node, (ast.Attribute, ast.Name))
    }
    return same and name in used


def _dump(node: ast.AST) -> str:
    """The tree without positions, whether it is read or written."""
    return ast.dump(node).replace("ctx=Store()", "ctx=Load()")
