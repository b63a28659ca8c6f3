"""A compiled program as it is stored."""

import attrs
from torch import Tensor


@attrs.frozen(eq=False)
class Package:
    """What a target has compiled: native code, without weights."""

    content: bytes
    """A file, such as a .pt2 archive."""

    constants: dict[str, Tensor] = attrs.field(factory=dict)
    """Tensors that tracing found outside parameters and buffers."""
