"""The mark of tests that compile for the CPU."""

import pytest

from decodekit.neuron_backend.targets.cpu import toolchain

_lack = toolchain.lack()
needs_toolchain = pytest.mark.skipif(
    _lack is not None, reason="" if _lack is None else f"needs {_lack.needed}"
)
