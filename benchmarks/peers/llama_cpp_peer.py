"""
llama.cpp, called through llama-cpp-python's C functions.

Needs only numpy and llama-cpp-python, and imports nothing of decodekit. A token costs one
``llama_decode`` and one argmax over the logits in place, without the overhead of the higher-level class.
"""

import ctypes
import time
from typing import Any

F32 = 0
"""GGML_TYPE_F32, ggml.h."""


class LlamaCppPeer:
    """A llama.cpp context for one sequence."""

    def __init__(self, specification: dict[str, Any]) -> None:
        import llama_cpp

        self._cpp: Any = llama_cpp
        # Kept alive, since C calls it.
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        model = llama_cpp.llama_model_load_from_file(specification["file"].encode(), model_options)
        if not model:
            raise ValueError(f"llama.cpp must load its model: got {specification['file']}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = specification["max_length"]
        options.n_batch = options.n_ubatch = specification["max_length"]
        options.n_threads = options.n_threads_batch = specification["threads"]
        if specification["type"] == "F32":
            # The default is float16.
            options.type_k = options.type_v = F32
        self._context = llama_cpp.llama_init_from_model(model, options)
        if not self._context:
            raise ValueError(f"llama.cpp must make a context: got none for {specification}")
        self._vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.facts = {
            "version": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode().strip(" |"),
            "cache": "F32" if specification["type"] == "F32" else "F16",
        }

    def generate(self, ids: list[int], count: int) -> dict[str, Any]:
        """Generate *count* tokens after *ids*; seconds to the first token, seconds of the others, the ids."""
        self._forget()
        start = time.perf_counter()
        self._feed(ids)
        generated = [int(self._logits().argmax())]
        first = time.perf_counter()
        while len(generated) < count:
            self._feed(generated[-1:])
            generated.append(int(self._logits().argmax()))
        return {
            "first_seconds": first - start,
            "other_seconds": time.perf_counter() - first,
            "ids": generated,
        }

    def score(self, ids: list[int], following: list[int], file: str) -> int:
        """Write the logits that score each of *following* after *ids* to *file*; the number of rows."""
        import numpy

        self._forget()
        self._feed(ids)
        scores = [self._logits().copy()]
        for token in following[:-1]:
            self._feed([token])
            scores.append(self._logits().copy())
        numpy.stack(scores).tofile(file)
        return len(scores)

    def _forget(self) -> None:
        self._cpp.llama_memory_clear(self._cpp.llama_get_memory(self._context), False)

    def _feed(self, ids: list[int]) -> None:
        tokens = (self._cpp.llama_token * len(ids))(*ids)
        status = self._cpp.llama_decode(self._context, self._cpp.llama_batch_get_one(tokens, len(ids)))
        if status:
            raise RuntimeError(f"llama_decode must give 0: got {status}")

    def _logits(self) -> Any:
        import numpy

        return numpy.ctypeslib.as_array(
            self._cpp.llama_get_logits_ith(self._context, -1), shape=(self._vocab,)
        )


def peer(specification: dict[str, Any]) -> LlamaCppPeer:
    """
    Load the model and create its context.

    Args:
        specification: ``file`` and ``type`` of the GGUF; ``max_length``; ``threads``.
    """
    return LlamaCppPeer(specification)
