"""The prompts of this folder."""

import json
from importlib.resources import files

KINDS = ("chat", "edits", "summaries", "structured", "code")


def prompts(kinds: tuple[str, ...] = KINDS) -> list[tuple[str, str]]:
    """Kind and text of each prompt, in the order of *kinds*."""
    folder = files(__package__)
    return [
        (kind, text)
        for kind in kinds
        for text in json.loads(folder.joinpath(f"{kind}.json").read_text(encoding="utf-8"))
    ]
