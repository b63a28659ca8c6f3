"""transformers-neuronx: ``SpeculativeGenerator(draft, target, k).sample(...)``."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
DRAFT = MODEL.parent / "draft"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from transformers import AutoTokenizer

from decodekit.neuron_backend import compile_decoder
from decodekit.speculation.neuronx_speculative_generator import SpeculativeGenerator

tokenizer = AutoTokenizer.from_pretrained(MODEL)
draft = compile_decoder(DRAFT, max_length=128, widths=(1, 32), threads=1, target=TARGET)
target = compile_decoder(MODEL, max_length=128, widths=(1, 4, 32), target=TARGET)  # scores k = 4 columns

spec_gen = SpeculativeGenerator(draft, target, 4)
input_ids = tokenizer("def main(", return_tensors="pt").input_ids
response = spec_gen.sample(input_ids=input_ids, sequence_length=30)
print(tokenizer.decode(response[0]))
