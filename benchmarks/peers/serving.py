"""
A contender's own process: ``python -P serving.py CONTENDER SPECIFICATION``.

CONTENDER is a module's name or a file's path, whose function ``contender`` takes the specification,
a JSON object, and gives an object with ``facts``, ``generate`` and ``score``. Requests and answers are
JSON, one a line, on standard input and output. What a library prints goes to the error stream.
"""

import importlib
import json
import os
import runpy
import sys
from typing import Any

_DISTRIBUTIONS = {"llama_cpp": "llama-cpp-python"}
"""What pip calls a module of another name."""


def main(arguments: list[str]) -> None:
    """Make the contender, say that it is there, and answer until there are no more requests."""
    answers = os.fdopen(os.dup(1), "w")
    # Also what is printed from C.
    os.dup2(2, 1)

    def answer(message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    where, specification = arguments
    try:
        if where.endswith(".py"):
            found = runpy.run_path(where)["contender"](json.loads(specification))
        else:
            found = importlib.import_module(where).contender(json.loads(specification))
    except ModuleNotFoundError as error:
        name = str(error.name)
        answer({"absent": f"{_DISTRIBUTIONS.get(name, name)} is not installed"})
        return
    answer({"facts": found.facts})
    for line in sys.stdin:
        request = json.loads(line)
        answer(getattr(found, request.pop("do"))(**request))


if __name__ == "__main__":
    main(sys.argv[1:])
