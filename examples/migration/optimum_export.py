"""optimum-neuron: ``NeuronModelForCausalLM.from_pretrained(model, export=True, ...)``."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from decodekit.neuron_backend import compile_decoder

decoder = compile_decoder(
    MODEL,
    batch_size=1,
    max_length=128,  # there, sequence_length
    dtype="bfloat16",  # there, auto_cast_type or torch_dtype
    tp_degree=1,  # there, num_cores or tensor_parallel_size
    target=TARGET,
)
print(decoder)
