"""The README.md of a decoder on the hub."""

from collections.abc import Sequence

from .manifest import Manifest


def model_card(repository: str, manifest: Manifest, architecture: str) -> str:
    """A card with metadata for the hub, how to load the decoder, and what it was made of and for."""
    shape = manifest.shape
    rows = {
        "architecture": architecture,
        "rows": shape.batch_size,
        "positions": shape.max_length,
        "widths": _list(shape.widths),
        "tree widths": _list(manifest.tree_widths) or "none",
        "spans": _list(manifest.spans),
        "dtype": manifest.dtype,
        "linear layers": _list(sorted(set(manifest.quantized.values()))) or manifest.dtype,
        "target": manifest.target,
        "processes": manifest.tp_degree,
        "processor": manifest.processor,
        **manifest.versions,
    }
    facts = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""---
library_name: decodekit
pipeline_tag: text-generation
tags:
- decodekit
---

# {repository.split("/")[1]}

A decoder of fixed shapes, saved by decodekit:

```python
from decodekit.neuron_backend import load_decoder

decoder = load_decoder("{repository}")
```

| | |
| --- | --- |
{facts}

Programs are native code. They are compiled again from the weights where they come from elsewhere,
unless `load_decoder` is called with `trust_programs=True`.
"""


def _list(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
