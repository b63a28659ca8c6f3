"""
Saved decoders, changed at random and sealed again: refused, compiled again, or the same.

For as long as ``--fuzz-minutes`` says; ``--fuzz-seed`` is the first seed. A finding names its seed.
"""

import copy
import json
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

from decodekit.decoding.file_digest import file_sha256
from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.artifacts.file_hashes import sha256
from decodekit.neuron_backend.artifacts.manifest import NAME, PLAIN_WEIGHTS, QUANTIZED_WEIGHTS
from decodekit.neuron_backend.targets.cpu.cpu_target import CpuTarget

pytestmark = pytest.mark.campaign

SETTINGS: list[dict[str, Any]] = [
    {},
    {"dtype": "bfloat16"},
    {"dtype": "float16"},
    {"weights": "int8"},
    {"weights": "int4"},
]

VALUES: list[Any] = [None, True, -1, 0, 1, 2, 3.5, 2**31, 2**63, "", "x", "../x", [], [[]], {}, [1], ["x"]]


class CompiledAgain(Exception):  # noqa: N818  # an outcome, not an error
    """Raised in place of compiling."""


def logits(decoder: CompiledDecoder) -> list[Tensor]:
    """Logits of a few forwards."""
    ids = torch.randint(61, (3, 1, 2), generator=torch.Generator().manual_seed(1))
    return [
        decoder.forward(each, torch.tensor([at])).clone() for each, at in zip(ids, (0, 2, 1), strict=True)
    ]


def change_facts(facts: Any, dice: random.Random) -> None:
    """Change one entry, at any depth, in place."""
    while True:
        keys = list(facts) if isinstance(facts, dict) else list(range(len(facts)))
        key = dice.choice(keys)
        inner = facts[key]
        if isinstance(inner, (dict, list)) and inner and dice.random() < 0.8:
            facts = inner
            continue
        action = dice.random()
        if action < 0.2:
            del facts[key]
        elif action < 0.4 and isinstance(inner, int):
            facts[key] = inner + dice.choice([-1, 1, 2])
        elif action < 0.6 and len(keys) > 1:
            other = dice.choice(keys)
            facts[key], facts[other] = facts[other], facts[key]
        else:
            facts[key] = copy.deepcopy(dice.choice(VALUES))
        return


def change_file(path: Path, dice: random.Random) -> None:
    """Flip, cut, double or empty."""
    content = bytearray(path.read_bytes())
    action = dice.random()
    if action < 0.7 and content:
        for _ in range(dice.randint(1, 4)):
            # Headers come first, and are what is interpreted.
            at = dice.randrange(min(len(content), dice.choice([8, 200, 4000, len(content)])))
            content[at] ^= 1 << dice.randrange(8)
    elif action < 0.8:
        del content[dice.randrange(len(content) + 1) :]
    elif action < 0.9:
        content += bytes(content)
    else:
        content.clear()
    path.write_bytes(content)


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Write decoder.json with hashes and a checksum that fit."""
    files = facts.get("files")
    if isinstance(files, dict):
        for name in files:
            if isinstance(name, str) and (folder / name).is_file():
                files[name] = file_sha256(folder / name)
    checksum = sha256(json.dumps(facts, sort_keys=True).encode())
    (folder / NAME).write_text(json.dumps({**facts, "checksum": checksum}))


def change(folder: Path, dice: random.Random) -> str:
    """Change one thing; what it was."""
    facts = json.loads((folder / NAME).read_text())
    del facts["checksum"]
    # Other weights are another model.
    others = [name for name in facts["files"] if name not in (PLAIN_WEIGHTS, QUANTIZED_WEIGHTS)]
    if dice.random() < 0.6:
        change_facts(facts, dice)
        what = NAME
    else:
        what = dice.choice(others)
        change_file(folder / what, dice)
    seal(folder, facts)
    return what


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: " ".join(settings.values()) or "float32")
def test_each_change_is_refused_compiled_again_or_the_same(
    settings: dict[str, Any], tiny_model: Any, tmp_path: Path, monkeypatch: Any, pytestconfig: Any
) -> None:
    """No other text, no other exception, no crash."""
    decoder = compile_decoder(tiny_model("llama"), max_length=32, widths=(2,), target="cpu", **settings)
    decoder.save(tmp_path / "decoder")
    expected, outcomes, seed = logits(decoder), Counter[str](), pytestconfig.getoption("--fuzz-seed")

    def again(self: object, decoder: object) -> None:
        raise CompiledAgain

    monkeypatch.setattr(CpuTarget, "compile", again)
    until = time.monotonic() + 60 * pytestconfig.getoption("--fuzz-minutes") / len(SETTINGS)
    while time.monotonic() < until:
        folder = tmp_path / "changed"
        shutil.copytree(tmp_path / "decoder", folder)
        what = change(folder, random.Random(seed))
        try:
            loaded = load_decoder(folder)
        except CompiledAgain:
            outcomes["compiled again"] += 1
        except (ValueError, OSError, SafetensorError):
            outcomes["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {what}: {error!r}") from error
        else:
            same = all(map(torch.equal, expected, logits(loaded)))
            assert same, f"seed {seed}, {what}: other logits"
            outcomes["the same"] += 1
        shutil.rmtree(folder)
        seed += 1
    print(dict(outcomes), "up to seed", seed)
    assert outcomes["refused"] > 0 or seed == pytestconfig.getoption("--fuzz-seed")
