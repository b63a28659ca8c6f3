"""Ranks by themselves; those of a sharded model are in :mod:`.test_sharded_model`."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.neuron_backend import compile_decoder
from decodekit.neuron_backend.tensor_parallel.ranks import Ranks

Models = Callable[..., PreTrainedModel]


class TestEnvironment:
    """Start by torchrun."""

    @pytest.mark.parametrize("degree", [0, -1, 1.5, True, "2"])
    def test_a_degree_is_a_number_of_processes(self, degree: Any, tiny_model: Models) -> None:
        """An integer >= 1."""
        with pytest.raises(ValueError, match="'tp_degree' must be a whole number >= 1"):
            compile_decoder(tiny_model("llama"), tp_degree=degree)

    def test_says_how_to_start(self, monkeypatch: pytest.MonkeyPatch, tiny_model: Models) -> None:
        """With the program's own name."""
        monkeypatch.setattr(sys, "argv", ["/somewhere/chat.py"])

        with pytest.raises(ValueError, match=r"start the program with: torchrun --nproc-per-node 4 chat\.py"):
            compile_decoder(tiny_model("llama"), tp_degree=4)
        assert Ranks.of_environment(1) is None

    @pytest.mark.slow
    @pytest.mark.parametrize("own", [False, True])
    def test_the_process_group_ends_with_the_program(self, own: bool, tmp_path: Path) -> None:
        """Its threads abort a process whose interpreter ends first. A program's own group is left to it."""
        program = tmp_path / "program.py"
        program.write_text(PROGRAM_OF_A_GROUP.format(before="init_process_group('gloo')" if own else "..."))

        run = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program],
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )

        assert run.stdout.count(str(own)) == 2

    @pytest.mark.parametrize("starts", [False, True], ids=["the program", "the target"])
    def test_a_group_of_a_device_gets_one_of_the_host_beside_it(self, starts: bool, tmp_path: Path) -> None:
        """TorchNeuron's group is the backend of every device, and takes no tensors of the host."""
        program = tmp_path / "program.py"
        program.write_text(PROGRAM_OF_A_DEVICE.format(starts=starts))

        run = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, check=False, timeout=600
        )

        assert ("device gloo device True\n", 0) == (run.stdout, run.returncode), run.stderr


PROGRAM_OF_A_DEVICE = """
import os
import torch
import torch.distributed as dist
from decodekit.neuron_backend.tensor_parallel import process_group as groups
from decodekit.neuron_backend.tensor_parallel.ranks import Ranks

class OfADevice(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)

    def getBackendName(self):
        return "device"

    def _set_group_name(self, name):
        self.own_name = name

    def _get_backend(self, device):
        return self

    @property
    def group_name(self):
        return self.own_name

os.environ |= dict(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.Backend.register_backend("device", OfADevice, devices=["cpu"])
start = lambda timeout: dist.init_process_group("device", timeout=timeout)
if not {starts}:
    start(None)
for _ in range(2):
    group = groups.join_processes(1, start if {starts} else None)
ranks = Ranks(1, 0, group.group_name)
same = ranks.have_same(b"a") and ranks.all_agree(True) and ranks.broadcast(b"a") == b"a"
same &= ranks.all_gather(torch.ones(1)) == ranks.gather(torch.ones(1)) == [torch.ones(1)]
names = [dist.get_backend(each) for each in (None, group, groups.process_group(groups.PROGRAM_GROUP))]
print(*names, same)
"""

PROGRAM_OF_A_GROUP = """
import atexit
from torch.distributed import destroy_process_group, init_process_group, is_initialized
from decodekit.neuron_backend.tensor_parallel.ranks import Ranks

@atexit.register
def after_decodekit():
    print(is_initialized(), flush=True)
    if is_initialized():
        destroy_process_group()

{before}
assert Ranks.of_environment(2).have_same(b"the same")
"""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 7, 64, 1000, 70_000])
def test_a_sum_over_several_ranks_is_the_same_bits_on_each(size: int, dtype: torch.dtype) -> None:
    """With four ranks, where the order of additions matters; with two it does not."""
    degree, store = 4, dist.HashStore()  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(size)
    partials = [torch.randn(size, generator=generator).to(dtype) for _ in range(degree)]

    def total(rank: int) -> Tensor:
        group: Any = dist.ProcessGroupGloo(store, rank, degree, timedelta(seconds=60))
        summed = partials[rank].clone()
        group.allreduce([summed]).wait()
        return summed

    with ThreadPoolExecutor(degree) as pool:
        first, *others = pool.map(total, range(degree))

    torch.testing.assert_close(torch.stack(partials).double().sum(0), first.double(), rtol=0.05, atol=0.05)
    assert all(torch.equal(first, other) for other in others)
