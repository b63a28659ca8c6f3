"""optimum-neuron: ``model.generate(**inputs, do_sample=True, temperature=, top_k=, top_p=)``."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from transformers import AutoTokenizer, GenerationConfig

from decodekit.decoding import Generator
from decodekit.neuron_backend import compile_decoder
from decodekit.processors import from_generation_config

tokenizer = AutoTokenizer.from_pretrained(MODEL)
decoder = compile_decoder(MODEL, max_length=128, widths=(1, 32), target=TARGET)

config = GenerationConfig(do_sample=True, temperature=0.7, top_k=50, top_p=0.9, max_new_tokens=24)
parts = from_generation_config(config, seed=0)  # or the parts by name: see neuronx_sample.py
generator = Generator(decoder, **parts.as_arguments(), tokenizer=tokenizer)

inputs = tokenizer(["def main("], return_tensors="pt")
result = generator(inputs)
print(tokenizer.batch_decode(result.sequences, skip_special_tokens=True))
