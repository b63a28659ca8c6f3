"""transformers-neuronx: ``model.save(folder)``, and ``model.load(folder)`` before ``to_neuron()``."""

import pathlib
import sys
import tempfile

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"
FOLDER = pathlib.Path(tempfile.mkdtemp()) / "compiled"

# --- shown in docs/migration.md
from transformers import AutoTokenizer

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import compile_decoder, load_decoder

decoder = compile_decoder(MODEL, max_length=128, widths=(1, 32), target=TARGET)
decoder.save(FOLDER, AutoTokenizer.from_pretrained(MODEL))  # weights, programs and tokenizer

loaded = load_decoder(FOLDER)  # without the model's folder, and without compiling
generator = Generator(loaded, stop=MaxNewTokens(24), tokenizer=loaded.tokenizer)
print(generator("def main(").text[0])
