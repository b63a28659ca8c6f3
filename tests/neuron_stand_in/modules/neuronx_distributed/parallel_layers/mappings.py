"""What is computed among cores."""

from typing import Any

import torch_xla.core.xla_model as xm
from torch import Tensor

from .parallel_state import tensor_model_parallel_groups


def reduce_from_tensor_model_parallel_region(input_: Tensor, process_group: Any = None) -> Tensor:
    """The sum over the cores, written into what is given."""
    if process_group is not None:
        raise NotImplementedError("the stand-in has one group")
    groups = tensor_model_parallel_groups()
    if len(groups[0]) > 1:
        # Tensors in a list are written in place; layouts that are not pinned may differ among programs.
        xm.all_reduce(xm.REDUCE_SUM, [input_], groups=groups, pin_layout=False)
    return input_
