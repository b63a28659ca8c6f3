"""transformers-neuronx: ``model.sample(input_ids, sequence_length=, top_k=)``."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from transformers import AutoTokenizer

from decodekit.decoding import Generator, MaxLength, Sample
from decodekit.neuron_backend import compile_decoder
from decodekit.processors import Temperature, TopK, TopP

tokenizer = AutoTokenizer.from_pretrained(MODEL)
decoder = compile_decoder(MODEL, batch_size=2, max_length=128, widths=(1, 32), target=TARGET)
generator = Generator(
    decoder,
    processors=Temperature([0.7, 1.0]) | TopK(50) | TopP(0.9),  # one temperature for each row
    sampler=Sample(seed=0),
    stop=MaxLength(48),
    tokenizer=tokenizer,
)
result = generator(["def main(", "import os\nimport "])  # prompts of any lengths, no padding
print(result.text, result.finish_reasons)
