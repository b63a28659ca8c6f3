"""optimum-neuron: ``pipeline("text-generation", model)``."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from decodekit.decoding import Generator, MaxNewTokens

generator = Generator.from_pretrained(MODEL, max_length=128, stop=MaxNewTokens(24), target=TARGET)
print(generator("def main(").text[0])  # with a chat template also [{"role": "user", "content": "..."}]
