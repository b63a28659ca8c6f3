"""The file of a program: an archive of its code and of what its pointers point to."""

import json

import attrs

CODE = "program.so"
"""Name of the shared library in a program's archive."""

ENTRY = "decodekit_program"
"""Name of its function, which takes the number of the span, pointers to tensors, and temporary memory."""

METADATA = "program_metadata.json"
"""Name of the metadata there."""

LAYOUT = "decodekit_layout"
"""Name in the metadata of the :class:`Layout`, as JSON."""


@attrs.frozen
class Layout:
    """What a program's pointers point to, and its memory."""

    inputs: tuple[str, ...]
    """Names of the first tensors, as :class:`~...layered.step_tensors.StepTensors` has them."""

    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    """Dtype and shape of each tensor that follows."""

    own: tuple[str, ...]
    """Names of the layers' own tensors, which are last."""

    slots: tuple[int, ...]
    """Number of slots of each span."""

    memory: int
    """Bytes of temporary memory."""

    @classmethod
    def from_json(cls, text: str) -> "Layout":
        """What ``json.dumps(attrs.asdict(...))`` wrote."""
        fields = json.loads(text)
        outputs = tuple((dtype, tuple(shape)) for dtype, shape in fields.pop("outputs"))
        return cls(**fields, outputs=outputs)
