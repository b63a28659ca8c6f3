"""transformers-neuronx: ``sample(..., streamer=)``."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from transformers import AutoTokenizer, TextStreamer

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import compile_decoder
from decodekit.streaming import LatencyMeter

tokenizer = AutoTokenizer.from_pretrained(MODEL)
decoder = compile_decoder(MODEL, max_length=128, widths=(1, 32), target=TARGET)
generator = Generator(decoder, stop=MaxNewTokens(24), tokenizer=tokenizer)

generator("def main(", streamer=TextStreamer(tokenizer))  # Hugging Face's streamers work as they are

meter = LatencyMeter()
generator("def main(", streamer=meter)
print(meter)
