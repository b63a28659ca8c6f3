"""optimum-neuron: ``save_pretrained(folder)`` and ``push_to_hub(folder, repository_id=)``."""

import pathlib
import sys
import tempfile

MODEL = pathlib.Path(__file__).parents[1] / "pair" / "target"
TARGET = sys.argv[1] if len(sys.argv) > 1 else "auto"
REPOSITORY = sys.argv[2] if len(sys.argv) > 2 else None  # such as "you/name"
FOLDER = pathlib.Path(tempfile.mkdtemp()) / "generator"

# --- shown in docs/migration.md
from decodekit.decoding import Generator, MaxNewTokens

generator = Generator.from_pretrained(MODEL, max_length=128, stop=MaxNewTokens(24), target=TARGET)
generator.save(FOLDER)  # decoder and tokenizer
if REPOSITORY:
    generator.decoder.push_to_hub(REPOSITORY, generator.tokenizer)

again = Generator.from_pretrained(REPOSITORY or FOLDER, stop=MaxNewTokens(24))
print(again("def main(").text[0])
