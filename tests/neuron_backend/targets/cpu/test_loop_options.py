"""Inductor's loops round a column alike at every width, however wide its norms."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import aoti_compile_and_package, aoti_load_package

from decodekit.neuron_backend.artifacts.machine import instruction_sets
from decodekit.neuron_backend.lowering.export import without_known_warnings
from decodekit.neuron_backend.targets.cpu.aoti import loop_options

from ....toolchain_mark import needs_toolchain


class Norm(nn.Module):
    """As models write it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5)


class Sums(nn.Module):
    """A layer norm, and the shares of a token's experts."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        few = x[:, :5].exp()
        return (
            nn.functional.layer_norm(x, x.shape[1:]),
            few.softmax(dim=-1),
            few / few.sum(dim=-1, keepdim=True),
        )


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


def compiled(module: nn.Module, rows: Tensor, folder: Path) -> Any:
    """What *module* gives for *rows*, compiled for as many."""
    exported = torch.export.export(module, (rows,))
    with without_known_warnings():
        path = aoti_compile_and_package(
            exported,
            package_path=str(folder / f"{len(rows)}.pt2"),
            inductor_configs=loop_options(exported.graph_module),
        )
    return aoti_load_package(path)(rows)


@pytest.mark.slow
@needs_toolchain
@pytest.mark.usefixtures("two_threads")
def test_wide_norms(tmp_path: Path) -> None:
    """With 12,288 numbers, the sums over five rows would be divided, and that over one would not."""
    x = torch.randn(5, 12_288, generator=torch.Generator().manual_seed(0))

    assert torch.equal(compiled(Norm(), x, tmp_path)[:1], compiled(Norm(), x[:1].clone(), tmp_path))


@pytest.mark.slow
@needs_toolchain
@pytest.mark.parametrize("numbers", [40, 768, 2048])
def test_a_single_row_is_summed_as_one_of_several(numbers: int, tmp_path: Path) -> None:
    """Variances, and sums of few numbers."""
    x = torch.randn(5, numbers, generator=torch.Generator().manual_seed(0))
    several, alone = compiled(Sums(), x, tmp_path), compiled(Sums(), x[:1].clone(), tmp_path)

    for one, other in zip(several, alone, strict=True):
        assert torch.equal(one[:1], other)


COMPILES = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from decodekit.neuron_backend import compile_decoder
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2,
)
decoder = compile_decoder(LlamaForCausalLM(config).eval(), target="cpu", max_length=32, widths=(1, 3))
print(decoder.kernels)
"""


@pytest.mark.slow
@needs_toolchain
@pytest.mark.skipif("avx512f" not in instruction_sets(), reason="needs vectors of two widths")
def test_processors_with_other_vectors_may_share_a_cache(tmp_path: Path) -> None:
    """What one has compiled is not taken by another, whose loops read and write other numbers of places."""
    for capability, kernels in (("avx2", "AVX2"), ("avx512", "AVX-512"), ("default", "portable")):
        given = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "DECODEKIT_CACHE": str(tmp_path)}
        run = subprocess.run(
            [sys.executable, "-c", COMPILES], capture_output=True, text=True, env=given, check=False
        )

        assert kernels in run.stdout, run.stderr
