"""
Saves and loads among other processes, on full and read-only disks, killed, and with folders that vanish.

For as long as ``--fuzz-minutes`` says, shared among the kinds of case; ``--fuzz-seed`` is the first seed. A
finding names its seed. Whatever happens, the folder holds one of the decoders that were saved, whole; the
next save works, and leaves nothing beside it.

A full disk is a tmpfs where this user may mount one, else a limit of the size of files (RLIMIT_FSIZE).
"""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from decodekit.neuron_backend import load_decoder

from .saves import KINDS, kind_of, save_again
from .small_disk import SmallDisk, small_disk
from .watched import campaign

pytestmark = pytest.mark.campaign

PROGRAM = str(Path(__file__).with_name("saves.py"))

CLEAR = ("No space left", "File too large", "Read-only file system", "No such file", "I/O error", "os error")
"""One of these must be in the message of a save that could not write."""


def start(*arguments: object) -> "subprocess.Popen[str]":
    """A program that saves or loads."""
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: "subprocess.Popen[str]", seed: int) -> str:
    """What it printed; it must have ended well."""
    out, errors = process.communicate(timeout=250)
    assert not process.returncode, f"{out}{errors}"
    return out


def require_whole(folder: Path) -> None:
    """Check that *folder* holds one of the decoders and can be replaced, with nothing left beside it."""
    assert kind_of(load_decoder(folder)) in range(len(KINDS))
    save_again(folder, 1)
    assert kind_of(load_decoder(folder)) == 1
    left = [path.name for path in folder.parent.iterdir() if path != folder and path.name != "filler"]
    assert not left, f"{left} beside the folder"


class Cases:
    """The kinds of case, in a folder of their own."""

    def __init__(self, folder: Path, disk: SmallDisk) -> None:
        self.folder, self.disk = folder, disk

    def at_once(self, seed: int) -> str:
        """Processes that save other decoders into the folder, and others that load from it meanwhile."""
        dice, final = random.Random(seed), self.folder / f"{seed}" / "decoder"
        save_again(final, 0)
        # Each loops for a second, as starting takes longer than a save.
        processes = [start("save", final, dice.randrange(10**6), 2.0) for _ in range(dice.randrange(1, 3))]
        processes.append(start("load", final, 0, 2.0))
        for process in processes:
            finished(process, seed)
        require_whole(final)
        return f"{len(processes)} processes"

    def killed(self, seed: int) -> str:
        """Processes that save are killed at random moments, for ten seconds."""
        final = self.folder / f"{seed}" / "decoder"
        return finished(start("kill", final, seed, 10.0), seed).splitlines()[-1]

    def compiled_at_once(self, seed: int) -> str:
        """Processes that compile the same decoder, one of which may be killed; all others end well."""
        dice, final = random.Random(seed), self.folder / f"{seed}" / "decoder"
        killed = start("compile", final, seed, 0.1) if dice.random() < 0.5 else None
        processes = [start("compile", final, seed, 0.1) for _ in range(2)]
        if killed is not None:
            assert killed.stdout is not None
            killed.stdout.readline()
            time.sleep(dice.uniform(0, 20))
            killed.kill()
            killed.communicate()
        for process in processes:
            finished(process, seed)
        require_whole(final)
        return "one killed" if killed is not None else "all ended"

    def disk_is_full(self, seed: int) -> str:
        """Or becomes so while a save writes, or is read-only; what was saved before stays."""
        dice, final = random.Random(seed), self.disk.folder / "decoder"
        save_again(final, 0)
        read_only = self.disk.mounted and dice.random() < 0.2
        with self.disk.read_only() if read_only else self.disk.filled(dice.randrange(0, 40_000)):
            try:
                save_again(final, 2)
            except Exception as error:
                if not any(words in str(error) for words in CLEAR):
                    raise
                outcome = f"refused: {type(error).__name__}"
                assert kind_of(load_decoder(final)) == 0
            else:
                outcome = "saved"
        require_whole(final)
        return outcome

    def folder_vanishes(self, seed: int) -> str:
        """The folder, or the one that it is in, is removed while processes save and load."""
        dice, final = random.Random(seed), self.folder / f"{seed}" / "decoder"
        save_again(final, 0)
        save, load = start("save-any", final, seed, 1.0), start("load-any", final, 0, 1.0)
        for process in (save, load):
            assert process.stdout is not None
            process.stdout.readline()
        remover = start("remove", final if dice.random() < 0.6 else final.parent, seed, 1.0)
        for process in (save, load, remover):
            finished(process, seed)
        save_again(final, 0)
        require_whole(final)
        return "vanished"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of a megabyte."""
    with small_disk(tmp_path / "disk") as found:
        yield found


NAMES = ["at_once", "killed", "compiled_at_once", "disk_is_full", "folder_vanishes"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_holds_one_whole_decoder(
    name: str, disk: SmallDisk, tmp_path: Path, pytestconfig: Any
) -> None:
    """Old or new, and never a mixture."""
    torch.set_num_threads(1)
    case: Callable[[int], str] = getattr(Cases(tmp_path / "folders", disk), name)
    print(f"a full disk is {disk.how};", end=" ")
    campaign(case, pytestconfig, 1 / len(NAMES), patience=300)
