"""Beyond transformers-neuronx: speculation of a batch, sampled, with processors, stops and statistics."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
DRAFT = MODEL.parent / "draft"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from transformers import AutoTokenizer

from decodekit.decoding import MaxNewTokens, Sample
from decodekit.neuron_backend import compile_decoder
from decodekit.processors import Temperature, TopP
from decodekit.speculation import DraftModel, SpeculativeGenerator

tokenizer = AutoTokenizer.from_pretrained(MODEL)
draft = compile_decoder(DRAFT, batch_size=2, max_length=128, widths=(1, 32), threads=1, target=TARGET)
target = compile_decoder(MODEL, batch_size=2, max_length=128, widths=(1, 5, 32), target=TARGET)
generator = SpeculativeGenerator(
    target,
    DraftModel(draft),
    num_draft_tokens=4,  # there, k = 5 counts the target's own token too
    processors=Temperature(0.7) | TopP(0.95),
    sampler=Sample(seed=0),
    stop=MaxNewTokens(32),
    tokenizer=tokenizer,
)
result = generator(["def main(", "class Stack:"])
print(result.text)
print(result.statistics)
