"""transformers-neuronx: ``from_pretrained(batch_size=, n_positions=, amp=, ...)`` and ``to_neuron()``."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from decodekit.neuron_backend import compile_decoder

decoder = compile_decoder(
    MODEL,
    batch_size=2,
    max_length=256,
    widths=(1, 5, 64),  # 1 to decode, 5 to verify 4 draft tokens, 64 for prompts
    spans=(64, 128, 256),
    dtype="bfloat16",
    weights="int8",
    tp_degree=1,
    target=TARGET,
)
print(decoder)
