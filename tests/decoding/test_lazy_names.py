"""What packages bring when they are asked."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

PACKAGES = (
    "decoding",
    "neuron_backend",
    "neuron_backend.adapters",
    "pretrained",
    "processors",
    "speculation",
    "streaming",
)


@pytest.mark.parametrize("name", PACKAGES)
class TestPackage:
    """``__init__`` lists its names twice: for type checkers and for lazy access."""

    def test_gives_what_type_checkers_see(self, name: str) -> None:
        """Every name is the very object that the module beside ``TYPE_CHECKING`` defines."""
        package = importlib.import_module(f"decodekit.{name}")
        tree = ast.parse(pathlib.Path(str(package.__file__)).read_text())
        block = next(node for node in tree.body if isinstance(node, ast.If))
        seen: dict[str, object] = {}
        for line in block.body:
            assert isinstance(line, ast.ImportFrom)
            module = importlib.import_module("." * line.level + (line.module or ""), package.__name__)
            seen |= {alias.name: getattr(module, alias.name) for alias in line.names}

        assert seen == {each: getattr(package, each) for each in package.__all__}

    def test_lists_its_names(self, name: str) -> None:
        """For interactive use, before any name was imported."""
        code = f"import decodekit.{name} as p; assert set(p.__all__) <= set(dir(p)); print(p.__name__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        assert f"decodekit.{name}\n" == done.stdout

    def test_refuses_what_it_has_not(self, name: str) -> None:
        """As any module does."""
        package = importlib.import_module(f"decodekit.{name}")

        with pytest.raises(AttributeError, match=f"module 'decodekit.{name}' has no attribute 'Nothing'"):
            _ = package.Nothing


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    """A package alone brings none of its modules; a name brings its own and what that is built on."""
    code = (
        "import sys, decodekit.processors;"
        "ours = lambda: {m for m in sys.modules if m.startswith('decodekit.processors.')};"
        "print(ours());"
        "from decodekit.processors import MinP;"
        "print(*(f'decodekit.processors.truncation.{name}' in ours() for name in ('min_p', 'xtc')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "set()\nTrue False\n" == done.stdout
