"""The bundled pair: sizes and acceptance."""

import importlib.util
import json
import pathlib
import sys
from types import ModuleType

import pytest
from safetensors import safe_open

from decodekit.benchmarks.models.bundled_pair import held_out_prompts
from decodekit.benchmarks.speculation.acceptance import measure

ROOT = pathlib.Path(__file__).parents[2]
PAIR = ROOT / "examples" / "pair"


def module(path: pathlib.Path) -> ModuleType:
    """Import the script at *path*."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def parameters(name: str) -> int:
    """Number of parameters of the model *name*, all bfloat16."""
    total = 0
    with safe_open(PAIR / name / "model.safetensors", "pt") as weights:
        for key in weights.keys():  # noqa: SIM118  # not a dict
            tensor = weights.get_slice(key)
            assert "BF16" == tensor.get_dtype()
            size = 1
            for n in tensor.get_shape():
                size *= n
            total += size
    return total


def test_sizes() -> None:
    """About 8 M parameters and at most a tenth of that, one vocabulary of 4096, at most 20 MB in all."""
    target, draft = parameters("target"), parameters("draft")
    stored = sum(path.stat().st_size for path in PAIR.rglob("*") if path.is_file())

    assert 7_500_000 < target < 8_500_000
    assert draft * 10 <= target
    assert stored <= 20_000_000
    for name in ("target", "draft"):
        config = json.loads((PAIR / name / "config.json").read_text())

        assert ["LlamaForCausalLM"] == config["architectures"]
        assert 4096 == config["vocab_size"]


def test_held_out_files_were_not_trained_on() -> None:
    """The split is by path, and no text is on both sides."""
    train = module(PAIR / "train.py")
    trained, unseen = set(train.training()), train.held_out()

    assert len(unseen) > 5
    # Some files of the library are empty, or copies of others.
    assert all(text not in trained for text in unseen if len(text) > 2000)


@pytest.mark.slow
def test_the_draft_agrees_with_the_target() -> None:
    """τ >= 2.5 tokens per target forward at k = 4 and temperature 0.7 on held-out files."""
    statistics = measure(held_out_prompts(32), tokens=96, temperature=0.7, num_draft_tokens=4)

    assert statistics.tokens > 2000
    assert statistics.mean_accepted_length >= 2.5
