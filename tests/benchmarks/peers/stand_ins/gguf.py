"""Stand-in of the package gguf for a Llama: writes an npz with tensors and metadata."""

import enum
import types

import numpy


class GGMLQuantizationType(enum.IntEnum):
    """ggml.h."""

    F32 = 0
    F16 = 1


class LlamaFileType(enum.IntEnum):
    """llama.h."""

    ALL_F32 = 0
    MOSTLY_F16 = 1


def _quantize(data, kind):
    return data.astype({0: numpy.float32, 1: numpy.float16}[kind])


quants = types.SimpleNamespace(quantize=_quantize)


class GGUFWriter:
    """Collects metadata by name."""

    def __init__(self, path, arch):
        self._path, self._held = path, {"architecture": arch}

    def __getattr__(self, name):
        if name.startswith("add_"):
            return lambda value: self._held.__setitem__(name.removeprefix("add_"), value)
        raise AttributeError(name)

    def add_tensor(self, name, tensor, raw_dtype=None):
        self._held[name] = tensor

    def write_header_to_file(self):
        pass

    def write_kv_data_to_file(self):
        pass

    def write_tensors_to_file(self):
        with open(self._path, "wb") as file:
            numpy.savez(file, **self._held)

    def close(self):
        pass
