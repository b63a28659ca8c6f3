"""Running a program whose forwards are one C++ function over fixed memory."""

import copy
import ctypes
import io
import json
import tempfile
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ....artifacts.packages import Package
from ....kv_cache.buffers import CacheBuffers
from ...layered.step_tensors import INPUT, state_values
from ..aoti import check_program, named_tensors
from ..kernel_description import describe_kernels, does_skip_padding, is_bit_exact
from .memory_plan import ALIGNMENT, aligned
from .program_file import CODE, ENTRY, LAYOUT, METADATA, Layout

# Of logits and of sampled tokens.
_DTYPES = {"float32": torch.float32, "int64": torch.int64}


class LayeredProgram:
    """
    A loaded program over a decoder's weights and cache, which :mod:`~....program_facts` describes.

    Two threads may not call it at once: its temporary memory is its own.
    """

    def __init__(
        self, package: Package, tensors: Mapping[str, Tensor], cache: CacheBuffers, fingerprint: str
    ):
        """Load native code, which the caller must trust; as :class:`~..aoti.CompiledProgram`."""
        with zipfile.ZipFile(io.BytesIO(package.content)) as archive, tempfile.TemporaryDirectory() as folder:
            metadata = json.loads(archive.read(METADATA))
            check_program(metadata, package, tensors, fingerprint)
            self._function = _entry(archive.extract(CODE, folder))
        self.kernels, self.bit_exact = describe_kernels(metadata), is_bit_exact(metadata)
        self.skips_padding = does_skip_padding(metadata)
        self._layout = layout = Layout.from_json(metadata[LAYOUT])
        known = {**tensors, **package.constants, **state_values(cache)}
        self._spans = {slots: number for number, slots in enumerate(layout.slots)}
        self._outputs = [(_DTYPES[dtype], shape) for dtype, shape in layout.outputs]
        self._first_output = len(layout.inputs)
        self._memory = torch.empty(layout.memory + ALIGNMENT, dtype=torch.uint8, device="cpu")
        self._given = {
            place: int(name.removeprefix(INPUT))
            for place, name in enumerate(layout.inputs)
            if name.startswith(INPUT)
        }
        self._fixed = {place: name for place, name in enumerate(layout.inputs) if place not in self._given}
        self._fixed |= dict(enumerate(layout.own, self._first_output + len(self._outputs)))
        self._point_to(named_tensors(list(self._fixed.values()), known))

    def over(self, cache: CacheBuffers) -> "LayeredProgram":
        """The program over another *cache* of the same shapes; the two may not run at once either."""
        other = copy.copy(self)
        states = state_values(cache)
        other._point_to({name: states.get(name, tensor) for name, tensor in self._tensors.items()})
        return other

    def _point_to(self, tensors: dict[str, Tensor]) -> None:
        layout = self._layout
        self._pointers = (ctypes.c_void_p * (len(layout.inputs) + len(self._outputs) + len(layout.own)))()
        # The program keeps pointers, so the tensors have to outlive it.
        self._tensors = tensors
        for place, name in self._fixed.items():
            self._pointers[place] = tensors[name].data_ptr()

    def __call__(self, *inputs: Tensor) -> Any:
        """Run on the step's checked inputs without the cache; return logits, or sampled tokens and logits."""
        given = [tensor.contiguous() for tensor in inputs]
        for place, number in self._given.items():
            self._pointers[place] = given[number].data_ptr()
        outputs = [torch.empty(shape, dtype=dtype, device="cpu") for dtype, shape in self._outputs]
        for place, tensor in enumerate(outputs, self._first_output):
            self._pointers[place] = tensor.data_ptr()
        self._run(self._spans[len(given[-1])])
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _run(self, span: int) -> None:
        # Python's lock is released while it runs.
        failed = self._function(span, self._pointers, aligned(self._memory.data_ptr()))
        if failed:
            raise RuntimeError(f"a program failed: {failed.decode(errors='replace')}")


def _entry(path: str) -> Any:
    function = ctypes.CDLL(path)[ENTRY]
    function.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    function.restype = ctypes.c_char_p
    return function
