"""The bundled pair, ``examples/pair`` of the repository: where it is, and text that it was not trained on."""

import runpy
from pathlib import Path

from transformers import AutoTokenizer

from ..measuring.arguments import progress

PROMPT_LENGTH = 128


def pair_folder() -> Path:
    """
    The folder of the bundled pair, which is not part of an installed package.

    Raises:
        FileNotFoundError: Neither a checkout nor the current folder has it.
    """
    for root in (Path(__file__).parents[2], Path.cwd()):
        if (root / "examples" / "pair").is_dir():
            return root / "examples" / "pair"
    raise FileNotFoundError("examples/pair must be in the current folder: run this benchmark in a checkout")


def held_out_prompts(count: int) -> list[list[int]]:
    """
    *count* windows of 128 tokens from held-out files, the first of every file before the second of any.

    The files may have fewer: how many there are is then printed on standard error.
    """
    tokenizer = AutoTokenizer.from_pretrained(pair_folder() / "target")
    texts = runpy.run_path(str(pair_folder() / "train.py"))["held_out"]()
    files = [tokenizer(text)["input_ids"] for text in texts]
    longest = max(map(len, files))
    windows = [file[at : at + PROMPT_LENGTH] for at in range(0, longest, 4 * PROMPT_LENGTH) for file in files]
    whole = [window for window in windows if len(window) == PROMPT_LENGTH]
    if len(whole) < count:
        progress(f"{len(whole)} held-out prompts, of {count} asked for: the files have no more")
    return whole[:count]
