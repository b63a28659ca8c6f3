"""Programs that AOTInductor compiles as a whole."""

import pytest
from torch._inductor import codecache
from torch._inductor.cpp_builder import CppBuilder
from transformers import AutoModelForCausalLM, LlamaConfig

from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.neuron_backend.targets.compiler_cache import private_compiler_cache
from decodekit.neuron_backend.targets.cpu import aoti, program_objects
from decodekit.neuron_backend.targets.cpu.vector_instructions import vector_instructions

from ....toolchain_mark import needs_toolchain

CONFIG = LlamaConfig(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


class ReachedError(Exception):
    """The compiler would run now."""


@needs_toolchain
def test_no_headers_of_a_known_folder_are_included(monkeypatch):
    """The compiler keeps precompiled ones among everyone's temporary files, whatever its cache."""

    def precompile(*_, **__):
        raise AssertionError(f"headers precompiled in {codecache._HEADER_DIR}")

    def build(_):
        raise ReachedError("the compiler")

    decoder = StaticDecoder(
        AutoModelForCausalLM.from_config(CONFIG).eval(), batch_size=1, max_length=64, widths=(1,)
    )
    program_objects.objects()
    vector_instructions()
    monkeypatch.setattr(codecache, "_precompile_header", precompile)
    monkeypatch.setattr(CppBuilder, "build", build)

    # The compiler wraps errors in its own.
    with pytest.raises(Exception, match="ReachedError: the compiler"), private_compiler_cache():
        aoti.compile_package(decoder.step, decoder.cache, 1, decoder.spans, "any")
