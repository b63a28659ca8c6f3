"""
Compilation of a decoder's programs without a Neuron device, to learn what neuronx-cc accepts.

Graphs are traced on the host, and the compiler is told the platform: neither needs a device. NxD's
ModelBuilder v2 always traces so (neuronx_distributed at fbac349, trace/functions.py, ``cpu_backend=True``),
and ``torch_neuronx.trace`` does with that argument (AWS Neuron SDK, `PyTorch NeuronX Tracing API for
Inference`).
The platform is in NEURON_PLATFORM_TARGET_OVERRIDE, as in optimum-neuron's guide to exports on other instances
(optimum-neuron at 213224e6, docs/source/guides/export_model.mdx).
"""

from typing import TYPE_CHECKING

import attrs

from .detect import probe
from .program_compiler import Report
from .traced_target import TracedTarget

if TYPE_CHECKING:
    from ...static_decoder import StaticDecoder

PLATFORM = "NEURON_PLATFORM_TARGET_OVERRIDE"
"""Variable with the platform to compile for, such as ``"trn1"``; read when AWS's packages are imported."""


def _ignore(name: str, result: object) -> None:
    """Report nothing."""


@attrs.frozen
class CompileOnly(TracedTarget):
    """
    Compiles the programs of a :class:`TracedTarget` and runs none: the decoder stays eager.

    Raises:
        RuntimeError: The compiler failed on some programs; the others were compiled and reported too.
    """

    report: Report = attrs.field(default=_ignore, kw_only=True)
    """Called with each program, and its files or why there are none."""

    def compile(self, decoder: "StaticDecoder") -> None:
        """Trace and compile every program."""
        way, cores, step, top_ks = self.prepare(decoder)
        way.compile_only(cores, step, top_ks, self.report)


def absent_packages(way: str) -> list[str]:
    """What is not installed of what compiles for *way*, each as a sentence."""
    found = probe()
    needed = ("torch-neuronx", "neuronx-cc", *(("neuronx-distributed",) if way == "nxd" else ()))
    absent = [f"{name} is not installed" for name in needed if name not in found.versions]
    if not absent and found.kind != "traced":
        absent.append(f"torch-neuronx 2.9 is needed, which traces: {found.reason}")
    return absent
