"""
From a Hugging Face causal LM to a decoder of fixed shapes.

:func:`compile_decoder` takes a model and gives a :class:`StaticDecoder`, which serves every part
of the toolkit through one call, ``forward(ids, cache_pos)``. :class:`DeviceChoice` is a chain of
processors and a selection as one module for the device; :func:`lint_module` says what neuronx-cc
would refuse of a module.

Decoders that others compiled serve through the same call: :class:`NxDInferenceDecoder`,
:class:`OptimumNeuronDecoder`, :class:`TransformersNeuronxDecoder`, :class:`CallableDecoder`.
"""

from .architectures.unsupported import UnsupportedArchitecture
from .artifacts.loading import load_decoder
from .compilation import compile_decoder
from .fused.device_choice import DeviceChoice
from .graphs.lint import lint_graph, lint_module
from .graphs.lowering import lower
from .graphs.rules import Finding
from .parallel.ranks import LostRank
from .parallel.tensor_parallel import rank_weights
from .quantization.drift import Drift, drift
from .quantization.quantized import Weights
from .static_decoder import StaticDecoder
from .targets.cuda_target import CudaTarget
from .targets.native_target import NativeTarget
from .targets.traced_target import TracedTarget
from .wrapped import (
    CallableDecoder,
    NxDInferenceDecoder,
    OptimumNeuronDecoder,
    TransformersNeuronxDecoder,
)

__all__ = [
    "CallableDecoder",
    "CudaTarget",
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
