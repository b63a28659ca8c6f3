"""
From a Hugging Face causal LM to a decoder of fixed shapes.

:func:`compile_decoder` takes a model and gives a :class:`StaticDecoder`, which serves every part
of the toolkit through one call, ``forward(ids, cache_pos)``. :class:`DeviceChoice` is a chain of
processors and a selection as one module for the device; :func:`lint_module` says what neuronx-cc
would refuse of a module.

Decoders that others compiled serve through the same call: :class:`NxDInferenceDecoder`,
:class:`OptimumNeuronDecoder`, :class:`TransformersNeuronxDecoder`, :class:`CallableDecoder`.
"""

from .compilation import compile_decoder
from .device_choice import DeviceChoice
from .drift import Drift, drift
from .lint import Finding, lint_graph, lint_module
from .loading import load_decoder
from .lowering import lower
from .native_target import NativeTarget
from .quantized import Weights
from .ranks import LostRank
from .static_decoder import StaticDecoder
from .tensor_parallel import rank_weights
from .traced_target import TracedTarget
from .unsupported import UnsupportedArchitecture
from .wrapped import (
    CallableDecoder,
    NxDInferenceDecoder,
    OptimumNeuronDecoder,
    TransformersNeuronxDecoder,
)

__all__ = [
    "CallableDecoder",
    "DeviceChoice",
    "Drift",
    "Finding",
    "LostRank",
    "NativeTarget",
    "NxDInferenceDecoder",
    "OptimumNeuronDecoder",
    "StaticDecoder",
    "TracedTarget",
    "TransformersNeuronxDecoder",
    "UnsupportedArchitecture",
    "Weights",
    "compile_decoder",
    "drift",
    "lint_graph",
    "lint_module",
    "load_decoder",
    "lower",
    "rank_weights",
]
