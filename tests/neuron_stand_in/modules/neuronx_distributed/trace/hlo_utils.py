"""Changes of graphs for the layout that was chosen for their weights."""

from pathlib import Path

import attrs

from .model_builder_utils import Hlo, TraceArtifacts, WLOArtifacts


def mark_weights_for_wlo(
    trace_artifacts: TraceArtifacts, weights_to_skip_layout_optimization: set[str] | None = None
) -> None:
    """Mark the weights whose layout the compiler may choose."""
    skipped = weights_to_skip_layout_optimization or set()
    marked = [name for name in trace_artifacts.weight_name_to_idx if name not in skipped]
    trace_artifacts.hlo = Hlo(trace_artifacts.hlo.recording, f"may change {marked}".encode())


def apply_layout_transformation(
    trace_artifacts: TraceArtifacts,
    priority_model_trace_artifacts: TraceArtifacts,
    wlo_artifacts: WLOArtifacts,
    key: str | None = None,
) -> None:
    """Let a graph take the weights that it shares with the priority model in the layout chosen for that."""
    if not trace_artifacts.weight_name_to_idx:
        raise RuntimeError("Layout transformation failed: Weight name to index mapping is empty")
    if wlo_artifacts.wrapped_neff_hlo_filepath is None:
        return
    changed = Path(wlo_artifacts.wrapped_neff_hlo_filepath).read_text().split()
    recording = trace_artifacts.hlo.recording
    transposed = [name for name in changed if name.replace(".", "->") in trace_artifacts.weight_name_to_idx]
    trace_artifacts.hlo = Hlo(
        attrs.evolve(recording, transposed=transposed), f"changed {transposed}".encode()
    )
