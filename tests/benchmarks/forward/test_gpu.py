"""The GPU benchmark, scaled down, on a stand-in GPU."""

import argparse
import json
import pathlib

import pytest
import torch

from decodekit.__main__ import main
from decodekit.benchmarks.command_line import benchmark_named
from decodekit.benchmarks.forward import gpu
from decodekit.benchmarks.forward.gpu_steps import peer_steps, random_model
from decodekit.benchmarks.peers.plain_llama import PlainLlama
from decodekit.neuron_backend import CudaTarget

from ...neuron_backend.targets.cuda.cuda_stand_in import CudaStandIn

# torch's compiler uses two of its own deprecated interfaces.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]


def parsed(*arguments: str) -> argparse.Namespace:
    """The options of the benchmark."""
    return benchmark_named("gpu").parser().parse_args(arguments)


@pytest.fixture
def target() -> CudaTarget:
    """A stand-in."""
    return CudaTarget(backend=None, runtime=CudaStandIn())


@pytest.mark.slow
def test_every_part_runs(
    target: CudaTarget, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs, and reports as text, JSON and plot."""
    pytest.importorskip("matplotlib")
    small = ["--small", "--layers", "1", "--rounds", "2", "--dtype", "float32", "--backend", "eager"]
    files = [tmp_path / "new" / "results.json", tmp_path / "plots" / "plot.png"]
    results = gpu.measure(parsed(*small, "--json", str(files[0]), "--plot", str(files[1])), target)
    printed = capsys.readouterr().out

    assert json.loads(files[0].read_text()) == json.loads(json.dumps(results))
    assert files[1].stat().st_size > 1000
    for name in results["decode"]["seconds"]:
        assert name in printed
    assert {"transformers, static cache", "plain loop"} < set(results["decode"]["seconds"])
    assert "vocabulary 2,304, batch 4" in printed
    assert [1, 4] == [row["batch"] for row in results["batch"]]
    assert [16, 32] == [row["context"] for row in results["context"]]


def test_what_is_read_is_counted(target: CudaTarget) -> None:
    """Layers and head once per token, one row of the embedding, and the cache."""
    small = ["--small", "--layers", "1", "--rounds", "1", "--dtype", "float32", "--backend", "eager"]
    found = gpu.measure(parsed(*small, "--parts", "decode"), target)["decode"]
    layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
    numbers = layer + 64 + 64 * 512

    # 16 positions, eight more, a spare slot and the one behind.
    assert 4 * (numbers + 2 * 64 * 26) == found["bytes"]


def test_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="this benchmark needs a CUDA GPU: got torch"):
        gpu.run(parsed())


def test_success_is_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are no exit status."""
    monkeypatch.setattr(gpu, "measure", lambda options: {"decode": options.rounds})

    assert 0 == main(["bench", "gpu"])


def test_no_rounds_are_refused(target: CudaTarget) -> None:
    """Before anything is measured."""
    with pytest.raises(ValueError, match="'rounds' must be >= 1: got 0"):
        gpu.measure(parsed("--small", "--rounds", "0"), target)


def test_the_static_cache_stays_at_its_position(target: CudaTarget) -> None:
    """However often the step is repeated, which writes into the same slot."""
    setting = gpu.setting_of(target, small=True, layers=1, dtype="float32", backend="eager")
    step = peer_steps(setting, random_model(setting), 4)["transformers, static cache"]
    found = [step() for _ in range(20)]

    assert all(torch.equal(found[0], each) for each in found)


def test_the_plain_loop_is_a_llama(target: CudaTarget) -> None:
    """It generates the stock model's tokens."""
    setting = gpu.setting_of(target, small=True, layers=2, dtype="float64", backend="eager")
    model = random_model(setting, num_key_value_heads=2)
    plain = PlainLlama(model, 2, 12)
    ids = torch.randint(512, (2, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(input_ids=ids).logits.argmax(dim=-1)
        found = [plain.step(ids[:, at : at + 1], torch.tensor([at])) for at in range(8)]

    assert torch.equal(expected, torch.cat(found, dim=1))
    assert expected.unique().numel() > 8
