"""
Saved decoders that differ in weights and files: saves.py ACTION FOLDER SEED SECONDS.

No relative imports: it is a program too, which saves or loads again and again.
"""

import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, LlamaConfig

from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder

KINDS = range(3)

EXPECTED = (OSError, ValueError)


@cache
def decoder(kind: int) -> CompiledDecoder:
    """A decoder whose weights are of that kind; the kinds have equal shapes but for the positions of one."""
    config = LlamaConfig(
        vocab_size=7,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(kind)
        model = AutoModelForCausalLM.from_config(config).eval()
    return CompiledDecoder(model, max_length=16 if kind == 2 else 8, widths=(1,))


def logits(of: CompiledDecoder) -> torch.Tensor:
    """Logits of a forward."""
    return of.forward(torch.tensor([[3]]), torch.tensor([0])).clone()


def kind_of(loaded: CompiledDecoder) -> int:
    """Which of the decoders was loaded; -1 if it is none of them."""
    found = logits(loaded)
    for kind in KINDS:
        # Compiled programs round differently.
        if torch.allclose(found, logits(decoder(kind)), atol=1e-5) and loaded.shape == decoder(kind).shape:
            return kind
    return -1


class Tokenizer:
    """Writes a file that decoders of some kinds do not have."""

    def __init__(self, name: str) -> None:
        self._name = name

    def save_pretrained(self, folder: Path) -> None:
        """Write it."""
        (folder / self._name).write_text("{}")


def save_again(folder: Path, kind: int) -> None:
    """Save the decoder of that kind."""
    decoder(kind).save(folder, tokenizer=Tokenizer(f"tokenizer_{kind}.json") if kind else None)


def load(folder: Path) -> None:
    """Load what is there, which must be one of the decoders; or be told that it changes all the time."""
    try:
        found = kind_of(load_decoder(folder))
    except OSError as error:
        if "must not be replaced while it is read" in str(error):
            return
        raise
    if found < 0:
        raise AssertionError("a mixture of decoders was loaded")


def compile_and_save(folder: Path) -> None:
    """Compile a decoder for the CPU, and save it and load it among others that do the same."""
    compiled = compile_decoder(decoder(0).step.model, max_length=8, widths=(1,), target="cpu")
    expected = logits(compiled)
    compiled.save(folder)
    loaded = load_decoder(folder)
    if not torch.equal(expected, logits(loaded)):
        raise AssertionError("the loaded decoder gives other logits than the compiled one")


def remove(folder: Path) -> None:
    """Remove the folder, as another program would."""
    gone = folder.parent.parent / "removed"
    # At once, as what is left of a folder is refused.
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def killed(folder: Path, dice: random.Random) -> None:
    """Kill a process that saves, at a random moment; then the folder holds one decoder, and can be saved."""
    shutil.rmtree(folder, ignore_errors=True)
    if had := dice.random() < 0.8:
        save_again(folder, 0)
    child = os.fork()
    if not child:
        while True:
            save_again(folder, dice.choice(KINDS))
    time.sleep(dice.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if had or folder.exists():
        load(folder)
    save_again(folder, 1)
    load(folder)
    left = [path.name for path in folder.parent.iterdir() if path != folder]
    if left:
        raise AssertionError(f"{left} beside the folder")


def main(action: str, folder: Path, seed: int, seconds: float) -> None:
    """Act until the seconds are over."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Not shared with processes that are forked and killed, as its own is.
    tqdm.set_lock(threading.RLock())
    dice = random.Random(seed)
    for kind in KINDS:
        logits(decoder(kind))
    actions: dict[str, Any] = {
        "save": lambda: save_again(folder, dice.choice(KINDS)),
        "load": lambda: load(folder),
        "compile": lambda: compile_and_save(folder),
        "kill": lambda: killed(folder, dice),
        "remove": lambda: remove(folder),
    }
    act, any_error = actions[action.removesuffix("-any")], action.endswith("-any")
    print("begins", flush=True)
    until, times = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        with contextlib.suppress(EXPECTED) if any_error else contextlib.nullcontext():
            act()
        # Others have their turn.
        time.sleep(dice.uniform(0, 0.05))
        times += 1
    print(action, times, "times")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
