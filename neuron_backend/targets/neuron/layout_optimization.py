"""
Weight layout optimisation of NxD: the compiler chooses how weights lie in memory for one program.

All other programs take the same weights, so theirs are changed to that layout before they are compiled, and a
small program brings the weights into it when they are loaded. The parts of ``ModelBuilder.compile`` with a
``priority_model_key``, in its order (neuronx_distributed at fbac349, trace/model_builder_v2.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .neuron_environment import compiled_logical_cores

NEFF = "graph.neff"
"""Name of the file with a program."""

WRAPPED = "wrapped_neff.hlo"
"""Name of the file that describes the layout; there is none if the compiler leaves weights as they are."""

LAYOUT = "layout_transformer"
"""NxD's key for the program that changes the weights' layout."""


def mark_weights(trace: Any) -> None:
    """Let the compiler choose the layout of all weights in the graph of *trace*, which is changed."""
    from neuronx_distributed.trace import hlo_utils

    hlo_utils.mark_weights_for_wlo(
        trace_artifacts=trace, weights_to_skip_layout_optimization=trace.weight_names_to_skip
    )


def compile_priority(name: str, trace: Any, arguments: str, workdir: str | None) -> dict[str, bytes]:
    """Compile the program that the layout is chosen for, after :func:`mark_weights`."""
    from neuronx_distributed.trace.functions import compile_wlo

    made = compile_wlo(
        hlo_module=trace.hlo,
        metaneff=trace.metaneff,
        compiler_workdir=workdir,
        compiler_args=arguments,
        key=name,
    )
    paths = {NEFF: made.neff_filepath, WRAPPED: made.wrapped_neff_hlo_filepath}
    return {file: Path(path).read_bytes() for file, path in paths.items() if path is not None}


def compile_layout(trace: Any, chosen: Any, arguments: str, workdir: str | None) -> dict[str, bytes]:
    """
    Compile the program that changes the weights' layout; its files are named after NxD's own fields.

    Args:
        trace: Trace of the program that the layout was chosen for.

        chosen: Its ``WLOArtifacts``.

        arguments: Those of neuronx-cc for the other programs, for as many physical cores in a logical one.

        workdir: Folder for the compiler's files.
    """
    from neuronx_distributed.trace.functions import compile_layout_transformer

    made = compile_layout_transformer(
        wlo_artifacts=chosen,
        priority_model_weight_name_to_idx=trace.weight_name_to_idx,
        compiler_workdir=workdir,
        logical_nc_config=compiled_logical_cores(arguments),
    )
    paths = {
        "hlo_filepath": made.hlo_filepath,
        "neff_filepath": made.neff_filepath,
        "metaneff_filepath": made.metaneff_filepath,
    }
    return {field: Path(path).read_bytes() for field, path in paths.items()}


def apply_layout(name: str, trace: Any, priority: Any, chosen: Any) -> None:
    """Change the graph of *trace* to the layout that was *chosen* for the program of *priority*."""
    from neuronx_distributed.trace import hlo_utils

    hlo_utils.apply_layout_transformation(
        trace_artifacts=trace, priority_model_trace_artifacts=priority, wlo_artifacts=chosen, key=name
    )


def choice_in(folder: Path, files: Mapping[str, bytes]) -> Any:
    """``WLOArtifacts`` over the *files* of the program that the layout is chosen for, written to *folder*."""
    from neuronx_distributed.trace.model_builder_utils import WLOArtifacts

    for name, content in files.items():
        (folder / name).write_bytes(content)
    return WLOArtifacts(str(folder / NEFF), str(folder / WRAPPED) if WRAPPED in files else None)


def transformer_in(folder: Path, files: Mapping[str, bytes]) -> Any:
    """``LayoutTransformerArtifacts`` over the result of :func:`compile_layout`, written to *folder*."""
    from neuronx_distributed.trace.model_builder_utils import LayoutTransformerArtifacts

    for name, content in files.items():
        (folder / name).write_bytes(content)
    return LayoutTransformerArtifacts(**{name: str(folder / name) for name in files})
