"""transformers-neuronx: ``sample(..., stopping_criteria_list=)``."""

import pathlib
import sys

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"

# --- shown in docs/migration.md
from transformers import AutoTokenizer
from transformers.generation import MaxTimeCriteria, StoppingCriteriaList

from decodekit.decoding import Generator, MaxNewTokens, MaxTime, StopStrings, stop_from_transformers
from decodekit.neuron_backend import compile_decoder

tokenizer = AutoTokenizer.from_pretrained(MODEL)
decoder = compile_decoder(MODEL, max_length=128, widths=(1, 32), target=TARGET)

own = MaxTime(60) | StopStrings(":", tokenizer, hide=False) | MaxNewTokens(48)
result = Generator(decoder, stop=own, tokenizer=tokenizer)("def main(")
print(result.text[0], result.finish_reasons)

theirs = stop_from_transformers(StoppingCriteriaList([MaxTimeCriteria(60)])) | MaxNewTokens(48)
result = Generator(decoder, stop=theirs, tokenizer=tokenizer)("def main(")
print(result.text[0], result.finish_reasons)
