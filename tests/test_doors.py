"""
The doors between the rooms: imports point down, and no files form a circle.

Read from the sources, not from what Python loads: an import counts wherever it stands, under
``TYPE_CHECKING`` and in functions too. ``from . import x`` is an arrow to ``x`` where that is a
module, and to the ``__init__`` where it is a name of it.
"""

import ast
import pathlib
from collections.abc import Iterator

import pytest

import decodekit

ROOT = pathlib.Path(decodekit.__file__).parent
PACKAGES = (
    "benchmarks",
    "decoding",
    "neuron_backend",
    "pretrained",
    "processors",
    "speculation",
    "streaming",
)

ALLOWED = {
    "decoding": set(),
    "processors": {"decoding"},
    "streaming": {"decoding"},
    "speculation": {"decoding", "processors"},
    "neuron_backend": {"decoding"},
    # The device's short cuts recognise processors by their types.
    "neuron_backend/on_device_sampling": {"decoding", "processors"},
    # Above the others: it joins a decoder, its tokenizer and its generation config; and it has the commands.
    "pretrained": {"decoding", "processors", "speculation", "streaming", "neuron_backend"},
    "benchmarks": {"decoding", "pretrained", "processors", "streaming", "speculation", "neuron_backend"},
}
"""Which other packages a package, or one of its rooms, imports."""

FLOORS = (
    ("ground",),
    ("text", "cache", "sampling", "stopping", "results"),
    ("engine",),
    ("serving",),
    ("generator",),
    ("serving.answer_source", "serving.session"),
    ("strategies", "interop", "testing"),
)
"""The rooms of ``decoding/`` and single modules, from the ground up. Other modules are ground."""


def sources() -> dict[str, pathlib.Path]:
    """Every module of the package, by its dotted name below ``decodekit``."""
    files = [ROOT / "__main__.py", ROOT / "testing.py"]
    files += [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


MODULES = sources()


def home_of(name: str) -> str | None:
    """The module called *name*, or the ``__init__`` of the package that is called so."""
    return next((found for found in (name, f"{name}.__init__") if found in MODULES), None)


def arrows(module: str) -> Iterator[str]:
    """The modules that *module* imports, or takes names from."""
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        for names in imported(node, package):
            found = next(filter(None, map(home_of, names)), None)
            if found is not None and found != module:
                yield found


def imported(node: ast.AST, package: list[str]) -> Iterator[tuple[str, ...]]:
    """For each import in *node*, the names below ``decodekit`` that may be its module, the likelier first."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top, _, below = alias.name.partition(".")
            if top == "decodekit":
                yield (below,)
    if isinstance(node, ast.ImportFrom):
        below = node.module or ""
        if node.level:
            base = package[: len(package) - node.level + 1]
        elif below.split(".")[0] == "decodekit":
            base, below = [], below.removeprefix("decodekit").strip(".")
        else:
            return
        origin = ".".join([*base, below] if below else base)
        for alias in node.names:
            yield f"{origin}.{alias.name}".lstrip("."), origin


GRAPH = {module: sorted(set(arrows(module))) for module in MODULES}


def circles(graph: dict[str, list[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def floor_of(module: str) -> int:
    """On which floor of ``decoding/`` *module* stands; that of a single module, before that of its room."""
    _, *names = module.split(".")
    for name in (".".join(names), names[0]):
        for floor, rooms in enumerate(FLOORS):
            if name in rooms:
                return floor
    return 0


def test_no_files_form_a_circle() -> None:
    """Every file can be read after those that it imports."""
    assert [] == circles(GRAPH)


def test_a_circle_would_be_found() -> None:
    """Of three files in a ring and one that imports them, the three."""
    assert [["a", "b", "c"]] == circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})


def test_imports_count_wherever_they_stand() -> None:
    """Under ``TYPE_CHECKING``, in a function, of a module from its package, and through an ``__init__``."""
    assert "decoding.generator" in GRAPH["decoding.__init__"]
    assert "decoding.sampling.noise" in GRAPH["decoding.generator"]
    assert "neuron_backend.__init__" in GRAPH["pretrained.from_files"]


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("import decodekit.decoding.history", [("decoding.history",)]),
        (
            "import torch, decodekit.processors as p, decodekit.streaming",
            [("processors",), ("streaming",)],
        ),
        (
            "from decodekit.decoding import history",
            [("decoding.history", "decoding")],
        ),
        ("from .noise import Noise", [("decoding.sampling.noise.Noise", "decoding.sampling.noise")]),
        ("from .. import trees, scores", [("decoding.trees", "decoding"), ("decoding.scores", "decoding")]),
        ("import torch.decodekit", []),
        ("from decodekit_other import x", []),
    ],
)
def test_every_form_of_an_import_counts(statement: str, names: list[tuple[str, ...]]) -> None:
    """Absolute and relative, of modules and of names, several at once; of this package alone."""
    (node,) = ast.parse(statement).body

    assert names == list(imported(node, ["decoding", "sampling"]))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_downwards(package: str) -> None:
    """Decoding imports no other package; the others import decoding, and few of them each other."""
    for module, imported in GRAPH.items():
        if module.split(".")[0] != package:
            continue
        room = "/".join(module.split(".")[:2])
        allowed = ALLOWED.get(room, ALLOWED[package]) | {package}
        others = {other for other in imported if other.split(".")[0] not in allowed}
        assert not others, f"{module} imports {sorted(others)}"


def test_rooms_of_decoding_import_downwards() -> None:
    """Ground floor, then text to results, then the engine, the generator, and what stands on it."""
    for module, imported in GRAPH.items():
        if not module.startswith("decoding.") or module == "decoding.__init__":
            continue
        for other in imported:
            if other.startswith("decoding."):
                assert other != "decoding.__init__", f"{module} takes a name from its own package's __init__"
                assert floor_of(other) <= floor_of(module), f"{module} imports {other}, which stands above it"
