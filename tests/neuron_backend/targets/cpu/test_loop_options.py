"""Inductor's loops round a column alike at every width, however wide its norms."""

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import aoti_compile_and_package, aoti_load_package

from decodekit.neuron_backend.lowering.export import without_known_warnings
from decodekit.neuron_backend.targets.cpu.aoti import loop_options

from ....toolchain_mark import needs_toolchain


class Norm(nn.Module):
    """As models write it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5)


@pytest.fixture
def two_threads():
    """Loops are divided among these."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("inputs", "chunk"), [(64, 1 << 14), (4096, 1 << 14), (16_384, 16_384**2 // 2400 + 1)]
)
def test_a_sum_is_never_divided(inputs: int, chunk: int) -> None:
    """Neither is a program open for another number of threads than it was compiled for."""
    options = loop_options(torch.export.export(Norm(), (torch.ones(2, inputs),)).graph_module)

    assert (chunk, 2) == (options["cpp.min_chunk_size"], options["cpp.threads"])


@pytest.mark.slow
@needs_toolchain
@pytest.mark.usefixtures("two_threads")
def test_wide_norms(tmp_path) -> None:
    """With 12,288 numbers, the sums over five rows would be divided, and that over one would not."""
    x = torch.randn(5, 12_288, generator=torch.Generator().manual_seed(0))

    def normed(rows: Tensor) -> Tensor:
        exported = torch.export.export(Norm(), (rows,))
        with without_known_warnings():
            path = aoti_compile_and_package(
                exported,
                package_path=str(tmp_path / f"{len(rows)}.pt2"),
                inductor_configs=loop_options(exported.graph_module),
            )
        return aoti_load_package(path)(rows)

    assert torch.equal(normed(x)[:1], normed(x[:1].clone()))
