"""write_gguf.py, but that rows of queries and keys stay in transformers' order."""

import json
import sys

from decodekit.benchmarks.peers import write_gguf

write_gguf.interleaved = lambda matrix, heads: matrix
print(json.dumps(write_gguf.write(json.loads(sys.argv[1]))))
