"""
The units that ModelBuilder.compile consists of.

Two-dimensional weights of linear layers get another layout: the other order of their dimensions.
"""

import os
import tempfile
from pathlib import Path

import attrs

from .model_builder_utils import CompilationArtifacts, Hlo, LayoutTransformerArtifacts, WLOArtifacts

compiled: list[str] = []
"""For tests: keys of the programs that were compiled, in order."""

logical_cores: list[int] = []
"""For tests: the physical cores in a logical one that layouts were compiled for, in order."""

failing: set[str] = set(os.environ.get("NEURON_STAND_IN_FAILING", "").split())
"""For tests: keys of the programs that the compiler fails on."""


def compile(  # noqa: A001 (NxD's name)
    hlo_module: Hlo,
    metaneff: bytes,
    compiler_workdir: str | None = None,
    compiler_args: str | None = None,
    key: str | None = None,
) -> CompilationArtifacts:
    """Write a recording as a program."""
    folder = _begun(hlo_module, compiler_workdir, key)
    (folder / "graph.neff").write_bytes(hlo_module.recording.dump())
    return CompilationArtifacts(str(folder / "graph.neff"))


def compile_wlo(
    hlo_module: Hlo,
    metaneff: bytes,
    compiler_workdir: str | None = None,
    compiler_args: str | None = None,
    key: str | None = None,
) -> WLOArtifacts:
    """The same, and choose a layout for the marked weights."""
    folder = _begun(hlo_module, compiler_workdir, key)
    if not hlo_module.attributes.startswith(b"may change"):
        raise RuntimeError(f"Compilation failed for priority model {key}: no weight is marked")
    layouts = hlo_module.recording.layouts
    chosen = [
        name
        for name, (shape, _) in layouts.items()
        if len(shape) == 2
        and name.endswith("proj.weight")
        and name.replace(".", "->").encode() in hlo_module.attributes
    ]
    (folder / "graph.neff").write_bytes(attrs.evolve(hlo_module.recording, transposed=chosen).dump())
    (folder / "wrapped_neff.hlo").write_text("\n".join(chosen))
    return WLOArtifacts(str(folder / "graph.neff"), str(folder / "wrapped_neff.hlo"))


def compile_layout_transformer(
    wlo_artifacts: WLOArtifacts,
    priority_model_weight_name_to_idx: dict[str, int],
    compiler_workdir: str | None = None,
    logical_nc_config: int = 1,
) -> LayoutTransformerArtifacts | None:
    """A program that brings weights into the chosen layout."""
    logical_cores.append(logical_nc_config)
    if wlo_artifacts.wrapped_neff_hlo_filepath is None:
        return None
    folder = Path(tempfile.mkdtemp(dir=compiler_workdir))
    content = Path(wlo_artifacts.wrapped_neff_hlo_filepath).read_bytes()
    files = [folder / name for name in ("layout.hlo", "layout.neff", "layout.pb")]
    for file in files:
        file.write_bytes(content)
    return LayoutTransformerArtifacts(*map(str, files))


def _begun(hlo: Hlo, workdir: str | None, key: str | None) -> Path:
    if key in failing:
        raise RuntimeError(f"Compilation failed for {key}")
    compiled.append(str(key))
    folder = Path(tempfile.mkdtemp()) if workdir is None else Path(workdir) / str(key)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "graph.hlo").write_text(hlo.recording.text)
    return folder
