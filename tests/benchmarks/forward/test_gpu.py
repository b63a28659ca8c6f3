"""The benchmark of a GPU, scaled down, on the stand-in for one."""

import importlib.util
import json
import pathlib
import sys
from argparse import Namespace
from types import ModuleType

import pytest
import torch

from decodekit.neuron_backend import CudaTarget

# torch uses two of its own deprecated interfaces while it imports and runs its compiler.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]

ROOT = pathlib.Path(__file__).parents[2]


def load(path: pathlib.Path) -> ModuleType:
    """A file as a module of its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plain_llama() -> ModuleType:
    """What others are represented by."""
    return load(ROOT / "benchmarks" / "plain_llama.py")


@pytest.fixture(scope="module")
def gpu(plain_llama: ModuleType) -> ModuleType:
    """The benchmark."""
    return load(ROOT / "benchmarks" / "gpu.py")


@pytest.fixture
def target() -> CudaTarget:
    """A stand-in."""
    stand_in = load(ROOT / "tests" / "neuron_backend" / "targets" / "cuda_stand_in.py")
    return CudaTarget(backend=None, runtime=stand_in.CudaStandIn())


def test_every_part_runs(
    gpu: ModuleType, target: CudaTarget, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what it has found: on paper, in JSON and as a plot."""
    pytest.importorskip("matplotlib")
    small = ["--small", "--layers", "1", "--rounds", "2", "--dtype", "float32", "--backend", "eager"]
    files = [tmp_path / "results.json", tmp_path / "plot.png"]
    results = gpu.main([*small, "--json", str(files[0]), "--plot", str(files[1])], target)
    said = capsys.readouterr().out

    assert json.loads(files[0].read_text()) == json.loads(json.dumps(results))
    assert files[1].stat().st_size > 1000
    for name in results["decode"]["seconds"]:
        assert name in said
    assert {"transformers, static cache", "plain loop"} < set(results["decode"]["seconds"])
    assert "vocabulary 2,304, batch 4" in said
    assert [1, 4] == [row["batch"] for row in results["batch"]]
    assert [16, 32] == [row["context"] for row in results["context"]]


def test_what_is_read_is_counted(gpu: ModuleType, target: CudaTarget) -> None:
    """Layers and head once a token, of the embedding one row, and the cache."""
    small = ["--small", "--layers", "1", "--rounds", "1", "--dtype", "float32", "--backend", "eager"]
    found = gpu.main([*small, "--parts", "decode"], target)["decode"]
    layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
    numbers = layer + 64 + 64 * 512

    # 16 positions, eight more, a spare slot and the one behind.
    assert 4 * (numbers + 2 * 64 * 26) == found["bytes"]


def test_without_a_gpu_says_so(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="this benchmark needs a CUDA GPU: got torch"):
        gpu.main([])


def test_the_plain_loop_is_a_llama(gpu: ModuleType, plain_llama: ModuleType, target: CudaTarget) -> None:
    """Or it would be quick at something else."""
    args = Namespace(small=True, layers=2, dtype="float64", weights=None, rounds=1, backend="eager")
    model = gpu.random_model(gpu.setting_of(args, target), num_key_value_heads=2)
    plain = plain_llama.PlainLlama(model, 2, 12)
    ids = torch.randint(512, (2, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(input_ids=ids).logits.argmax(dim=-1)
        found = [plain.step(ids[:, at : at + 1], torch.tensor([at])) for at in range(8)]

    assert torch.equal(expected, torch.cat(found, dim=1))
    assert expected.unique().numel() > 8
