"""
The main program of a peer's process: ``python -P serving.py PEER SPECIFICATION``.

PEER is a module name or a file path, whose function ``peer`` takes the specification, a JSON object, and
returns an object with ``facts``, ``generate`` and ``score``. Requests and answers are JSON, one a line, on
standard input and output. Output of libraries goes to standard error.
"""

import importlib
import json
import os
import runpy
import sys
from typing import Any

_DISTRIBUTIONS = {"llama_cpp": "llama-cpp-python"}
"""Names of distributions that differ from their module's."""


def main(arguments: list[str]) -> None:
    """Create the peer, send its facts, and answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    # On the file descriptor, so that output from C is redirected too.
    os.dup2(2, 1)

    def answer(message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    where, specification = arguments
    try:
        if where.endswith(".py"):
            found = runpy.run_path(where)["peer"](json.loads(specification))
        else:
            found = importlib.import_module(where).peer(json.loads(specification))
    except ModuleNotFoundError as error:
        name = str(error.name)
        answer({"absent": f"{_DISTRIBUTIONS.get(name, name)} is not installed"})
        return
    answer({"facts": found.facts})
    methods = {"generate": found.generate, "score": found.score}
    for line in sys.stdin:
        request = json.loads(line)
        answer(methods[request.pop("do")](**request))


if __name__ == "__main__":
    main(sys.argv[1:])
