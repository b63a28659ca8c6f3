"""
Decoders over models that other libraries compiled, served through ``forward(ids, cache_pos)``.

Nothing is compiled here, and none of the libraries is imported: each class takes a model that is
ready to run and reads its capabilities from its configuration. ``shape`` and ``limits`` state what it
can and cannot do.
"""

from typing import TYPE_CHECKING

from ...decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from .callable_decoder import CallableDecoder as CallableDecoder
    from .nxd_inference import NxDInferenceDecoder as NxDInferenceDecoder
    from .optimum_neuron import OptimumNeuronDecoder as OptimumNeuronDecoder
    from .static_cache_decoder import StaticCacheDecoder as StaticCacheDecoder
    from .transformers_neuronx import TransformersNeuronxDecoder as TransformersNeuronxDecoder
    from .wrapped_decoder import WrappedDecoder as WrappedDecoder
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
