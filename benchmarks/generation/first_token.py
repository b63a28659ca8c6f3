"""
The measured process of ``bench start``.

``python -m decodekit.benchmarks.generation.first_token FOLDER THREADS``

Loads a saved decoder, generates one token, and prints the times of each step.
"""

import json
import sys
import time


def main(folder: str, threads: str) -> None:
    """Print the time at which each step ended, and the token."""
    since = {"began": time.time()}
    import torch  # noqa: F401

    since["torch"] = time.time()
    from ...decoding import Generator, MaxNewTokens
    from ...neuron_backend import load_decoder

    since["decodekit"] = time.time()
    decoder = load_decoder(folder)
    decoder.threads = int(threads)
    since["loaded"] = time.time()
    result = Generator(decoder, stop=MaxNewTokens(1))([1, 2, 3])
    since["token"] = time.time()
    print(json.dumps({"since": since, "compiled": decoder.compiled, "ids": result.ids[0]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
