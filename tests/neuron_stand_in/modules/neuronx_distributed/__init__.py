"""
A stand-in for the part of neuronx-distributed that compiles one module for top_choices shapes.

After AWS's `ModelBuilderV2 API Reference`: one list of states for all programs, made of the
first one's, routing by the shapes of the inputs. A program is traced for the first of the cores, and
run for each of them, with weights and states of its own; sums among them are made on the host.
"""

from .model_builder import ModelBuilder
from .nxd_model import NxDModel
from .parallel_context import NxDParallelState

__version__ = "0.16+stand.in"

__all__ = ["ModelBuilder", "NxDModel", "NxDParallelState"]
