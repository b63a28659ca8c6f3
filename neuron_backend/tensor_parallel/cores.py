"""
Cores that hold one model together and are driven by one process.

A traced program for Neuron is not started by ``torchrun``: the runtime is given one program and a
list of weights, one set for each core, and every call goes to all cores. So the process
has the whole model, which the programs are compared with and which is what is saved; and what is
compiled is the part of the first core. No program depends on the core (:mod:`.parallel_layers`).
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import torch.distributed as dist
from torch import Tensor

from ..targets.target import DrivesCores, Target
from .divided_model import divided, rank_weights
from .parallel_layers import summing
from .ranks import Ranks, check_degree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..static_decoder import StaticDecoder

CORES = "neuron cores"
"""What stands for the name of a process group: the sum is one that the compiler knows."""


def holders(target: Target, tp_degree: int) -> tuple[Ranks | None, int]:
    """
    Who holds the model together: this process among others, or so many cores of this process.

    Args:
        target: One that drives cores has all of them in one process; else each has a process.

        tp_degree: How many there are.

    Raises:
        ValueError: *tp_degree* is no whole number >= 1, or not what was started.
    """
    if not (isinstance(target, DrivesCores) and target.drives_cores):
        return Ranks.of_environment(tp_degree), 1
    check_degree(tp_degree)
    started = dist.is_available() and dist.is_initialized()
    processes = dist.get_world_size() if started else int(os.environ.get("WORLD_SIZE", "1"))
    if tp_degree > 1 and (started or processes > 1):
        raise ValueError(
            f"a decoder for target {target.name!r} must be made in one process without a process group, "
            f"which drives all {tp_degree} cores: got one of {processes}; start the program without torchrun"
        )
    return None, tp_degree


@attrs.frozen(eq=False)
class Cores:
    """Those of one decoder."""

    degree: int
    """How many there are."""

    model: "PreTrainedModel"
    """The whole of it."""

    part: "StaticDecoder"
    """What the first core runs, over its part of weights and cache; the decoder itself if there is one."""

    @classmethod
    def of(cls, decoder: "StaticDecoder") -> "Cores":
        """
        The ``decoder.cores`` of a decoder over a whole model.

        Raises:
            UnsupportedArchitecture: Its model has no plan.

            ValueError: Heads or layers cannot be divided so, or weights are quantised.
        """
        model = decoder.step.model
        if decoder.ranks is not None:
            raise ValueError(
                "cores driven by one process must divide a whole model: "
                f"got the part of one of {decoder.ranks.degree} processes"
            )
        if decoder.cores == 1:
            return cls(1, model, decoder)
        part = divided(model, Ranks(decoder.cores, 0, CORES))
        # Shapes are all that is to be learnt from it here, and those do not change in a sum.
        with summing(CORES, lambda partial: partial):
            view = type(decoder).unchecked(part, decoder.shape, decoder.tree_widths, decoder.spans)
        if decoder.fusion is not None:
            # By the name of the decoder's own, also where no other could come to the same.
            view.fusion = decoder.fusion.over(view.step, decoder.shape)
        return cls(decoder.cores, model, view)

    def weights(self, first: Mapping[str, Tensor], prefix: str) -> list[dict[str, Tensor]]:
        """
        What each core is given, all under the same names.

        Args:
            first: What the first is given, buffers included that no state dict has.

            prefix: Of the names in *first*: what stands before those that the model has for them.
        """
        if self.degree == 1:
            return [dict(first)]
        return [
            {**first, **{prefix + name: tensor.detach() for name, tensor in own.items()}}
            for own in rank_weights(self.model, self.degree)
        ]
