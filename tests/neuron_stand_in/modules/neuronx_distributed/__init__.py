"""
Stand-in for the part of neuronx-distributed that compiles one module for several shapes.

After AWS's `ModelBuilderV2 API Reference`: one list of states for all programs, made of the
first one's, and routing by the shapes of the inputs. A program is traced for the first core, and
run for each core, with its own weights and states; sums among cores are computed on the host.
"""

from .model_builder import ModelBuilder
from .nxd_model import NxDModel
from .parallel_context import NxDParallelState

__all__ = ["ModelBuilder", "NxDModel", "NxDParallelState"]
