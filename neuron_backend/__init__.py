"""
Hugging Face causal LMs compiled to decoders of fixed shapes.

:func:`compile_decoder` compiles a model to a :class:`CompiledDecoder`, which every part of the toolkit uses
through one call, ``forward(ids, cache_pos)``. :class:`DeviceSampling` is a chain of processors and a sampler
as one module for the device; :func:`lint_module` reports what neuronx-cc would refuse of a module.

Decoders compiled by other libraries have the same interface: :class:`NxDInferenceDecoder`,
:class:`OptimumNeuronDecoder`, :class:`TransformersNeuronxDecoder`, :class:`CallableDecoder`.
"""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from .adapters import (
        CallableDecoder as CallableDecoder,
        NxDInferenceDecoder as NxDInferenceDecoder,
        OptimumNeuronDecoder as OptimumNeuronDecoder,
        StaticCacheDecoder as StaticCacheDecoder,
        TransformersNeuronxDecoder as TransformersNeuronxDecoder,
    )
    from .compilation import compile_decoder as compile_decoder
    from .compiled_decoder import CompiledDecoder as CompiledDecoder
    from .lint.graph_lint import lint_graph as lint_graph, lint_module as lint_module
    from .lint.rules import Finding as Finding
    from .lowering.export import lower as lower
    from .models.unsupported import UnsupportedArchitecture as UnsupportedArchitecture
    from .on_device_sampling.device_sampling import DeviceSampling as DeviceSampling
    from .parity.drift import Drift as Drift, drift as drift
    from .quantization.quantized import Weights as Weights
    from .serialization.loading import load_decoder as load_decoder
    from .static_decoder import StaticDecoder as StaticDecoder
    from .targets.cuda.cuda_target import CudaTarget as CudaTarget
    from .targets.neuron.native_target import NativeTarget as NativeTarget
    from .targets.neuron.traced_target import TracedTarget as TracedTarget
    from .tensor_parallel.lost_ranks import LostRank as LostRank
    from .tensor_parallel.sharded_model import rank_weights as rank_weights
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
