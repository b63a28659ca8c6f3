"""
Compilation of a decoder's programs: lowered one after the other, with C++ compiled in the background.

A program whose operations are all loops or own kernels is one of :mod:`~.layered.layered_program`, and takes
seconds. AOTInductor compiles the others as a whole.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import attrs

from ...artifacts.packages import Package
from ...kv_cache.buffers import CacheBuffers
from ...step import Step, program_name
from ..layered.layer_graphs import NotLayered
from . import aoti, program_objects
from .kernel_library import KernelDtypes, Library, NoLibrary
from .layered.lowered_program import LoweredProgram
from .layered.program_lowering import lower_program
from .vector_instructions import vector_instructions

_LOG = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class ProgramCompiler:
    """A context in which programs of one decoder are compiled."""

    spans: Sequence[int]
    dtypes: KernelDtypes
    """Inputs that the kernels will take."""

    _kernels: Future[Library | NoLibrary]
    _background: ThreadPoolExecutor

    @classmethod
    def of(
        cls,
        spans: Sequence[int],
        dtypes: KernelDtypes,
        kernels: Callable[[], Library | NoLibrary],
    ) -> Self:
        """
        Begin with compiling the kernels.

        Args:
            spans: Numbers of positions that programs may attend to.

            dtypes: Inputs that the kernels will take.

            kernels: Compiles the kernels, and measures them where there are several.
        """
        # Before any code is generated.
        vector_instructions()
        background = ThreadPoolExecutor(1, thread_name_prefix="decodekit-compiler")
        return cls(spans, dtypes, background.submit(kernels), background)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._background.shutdown(cancel_futures=True)

    def compile(self, step: Step, width: int, cache: CacheBuffers, fingerprint: str) -> Callable[[], Package]:
        """
        Compile *step* for one width and every span; arguments as of :func:`~.aoti.compile_package`.

        Returns:
            Waits for the program.
        """
        try:
            lowered = lower_program(step, cache, width, self.spans, fingerprint, self.dtypes)
        except NotLayered as reason:
            _LOG.info("%s is compiled as a whole: %s", program_name(step, width), reason)
            package = aoti.compile_package(
                step, cache, width, self.spans, fingerprint, self._kernels.result()
            )
            return lambda: package
        return self._background.submit(self._built, lowered).result

    def _built(self, lowered: LoweredProgram) -> Package:
        return lowered.built(self._kernels.result(), program_objects.pool_objects())
