"""
What NxD has to know while a program for several cores is traced.

AWS Neuron SDK, `ModelBuilderV2 API Reference`, usage examples; neuronx_distributed/trace/parallel_context.py,
which traces for the first of the cores, and parallel_layers/mappings.py, whose sum becomes an
all-reduce among them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ..parallel.cores import CORES
from ..parallel.parallel_layers import summing


@contextmanager
def nxd_cores(degree: int) -> Iterator[None]:
    """
    Trace and compile for so many cores.

    Raises:
        ValueError: This neuronx_distributed cannot.
    """
    if degree == 1:
        yield
        return
    try:
        from neuronx_distributed import NxDParallelState
        from neuronx_distributed.parallel_layers.mappings import reduce_from_tensor_model_parallel_region
    except ImportError as error:
        raise ValueError(
            f"tp_degree {degree} needs a neuronx-distributed with NxDParallelState, from "
            f"https://pip.repos.neuron.amazonaws.com: got {error}"
        ) from error
    with (
        NxDParallelState(world_size=degree, tensor_model_parallel_size=degree),
        summing(CORES, reduce_from_tensor_model_parallel_region),
    ):
        yield
