"""
A stand-in for the part of neuronx-distributed that compiles one module for several shapes.

After AWS's `ModelBuilderV2 API Reference`: one rank, one list of states for all programs, made of the
first one's, routing by the shapes of the inputs.
"""

from .model_builder import ModelBuilder
from .nxd_model import NxDModel

__version__ = "0.16+stand.in"

__all__ = ["ModelBuilder", "NxDModel"]
