"""
Limit of the instruction sets that own kernels use, so that one machine can test what others run.

``$DECODEKIT_MAX_CPU_ISA`` is ``amx``, ``avx512``, ``avx2`` or ``portable``. Without it, oneDNN's variable
``$ONEDNN_MAX_CPU_ISA`` counts: AVX-512 without AMX stands for ``avx512``, AVX2 for ``avx2``, less for
``portable``. torch's ``$ATEN_CPU_CAPABILITY``, by which Inductor chooses the vectors of all programs, lowers
the limit further: ``avx2`` to ``avx2``, ``default`` to ``portable``.
"""

import os
from collections.abc import Mapping
from typing import Literal, TypeAlias

Limit: TypeAlias = Literal["amx", "avx512", "avx2", "portable"]

OWN = "DECODEKIT_MAX_CPU_ISA"
"""Name of the variable."""

_ONEDNN = "ONEDNN_MAX_CPU_ISA"
_TORCH = "ATEN_CPU_CAPABILITY"
_OF_TORCH: Mapping[str, Limit] = {"avx512": "amx", "avx2": "avx2", "default": "portable"}
_LIMITS: tuple[Limit, ...] = ("amx", "avx512", "avx2", "portable")


def instruction_limit(environment: Mapping[str, str] = os.environ) -> Limit:
    """
    The limit that the *environment* sets; ``"amx"`` if it sets none.

    >>> instruction_limit({"DECODEKIT_MAX_CPU_ISA": "portable"})
    'portable'
    >>> instruction_limit({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"})
    'avx512'
    >>> instruction_limit({"ONEDNN_MAX_CPU_ISA": "AVX2"})
    'avx2'
    >>> instruction_limit({"ATEN_CPU_CAPABILITY": "avx2"})
    'avx2'

    Raises:
        ValueError: decodekit's own variable has another value.
    """
    torchs = _OF_TORCH.get(environment.get(_TORCH, "").lower(), "amx")
    return max(_asked_limit(environment), torchs, key=_LIMITS.index)


def _asked_limit(environment: Mapping[str, str]) -> Limit:
    own = environment.get(OWN)
    if own is not None:
        for limit in _LIMITS:
            if own.lower() == limit:
                return limit
        raise ValueError(f"'{OWN}' must be one of {', '.join(_LIMITS)}: got {own!r}")
    onednn = environment.get(_ONEDNN, "").upper()
    if onednn in ("SSE41", "AVX"):
        return "portable"
    if onednn.startswith("AVX2"):
        return "avx2"
    return "avx512" if onednn.startswith("AVX512") and "AMX" not in onednn else "amx"
