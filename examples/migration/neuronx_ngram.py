"""transformers-neuronx and its successors: n-gram speculation, also called prompt lookup."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from transformers import AutoTokenizer

from decodekit.decoding import MaxNewTokens
from decodekit.neuron_backend import compile_decoder
from decodekit.speculation import PromptLookup, SpeculativeGenerator

tokenizer = AutoTokenizer.from_pretrained(MODEL)
decoder = compile_decoder(MODEL, max_length=128, widths=(1, 5, 32), target=TARGET)
generator = SpeculativeGenerator(
    decoder,
    PromptLookup(max_ngram=3),
    num_draft_tokens=4,
    stop=MaxNewTokens(24),
    tokenizer=tokenizer,
)
result = generator("def main(")
print(result.text[0])
print(result.statistics.mean_accepted_length)
