"""write_gguf.py with query and key rows wrongly left in transformers' order."""

import json
import sys

from decodekit.benchmarks.peers import write_gguf

write_gguf.interleaved = lambda matrix, heads: matrix
print(json.dumps(write_gguf.write(json.loads(sys.argv[1]))))
