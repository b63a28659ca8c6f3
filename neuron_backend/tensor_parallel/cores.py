"""
Tensor parallelism over Neuron cores that one process drives.

A traced program for Neuron is not started by ``torchrun``: the runtime takes one program and a list of
weights, one set per core, and every call runs on all cores. The process therefore holds the whole model,
which is saved and which the programs are compared with; the shard of core 0 is compiled. Programs do not
depend on the core (:mod:`.parallel_layers`).
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import torch.distributed as dist
from torch import Tensor

from ..targets.target import DrivesCores, StartsProcessGroup, Target
from .parallel_layers import override_all_reduce
from .ranks import Ranks, check_degree
from .sharded_model import rank_weights, shard_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..static_decoder import StaticDecoder

CORES = "neuron cores"
"""In place of a process group's name: the all-reduce is one that the compiler provides."""


def ranks_or_cores(target: Target, tp_degree: int) -> tuple[Ranks | None, int]:
    """
    The ranks that share the model, or the number of cores of this process that do.

    Args:
        target: A target that drives cores uses one process for all of them; any other, one process per rank.

        tp_degree: Number of shards.

    Raises:
        ValueError: *tp_degree* is not an integer >= 1, or does not match the processes that were started.
    """
    if not (isinstance(target, DrivesCores) and target.drives_cores):
        start = target.start_process_group if isinstance(target, StartsProcessGroup) else None
        return Ranks.of_environment(tp_degree, start), 1
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
    """The cores of one decoder."""

    degree: int
    """Number of cores."""

    model: "PreTrainedModel"
    """The whole model."""

    part: "StaticDecoder"
    """The decoder over core 0's shard of weights and cache; the decoder itself if there is one core."""

    @classmethod
    def of(cls, decoder: "StaticDecoder") -> "Cores":
        """
        The ``decoder.cores`` of a decoder over a whole model.

        Raises:
            UnsupportedArchitecture: The model has no tensor-parallel plan.

            ValueError: *decoder.cores* does not divide heads or layers, or weights are quantised.
        """
        model = decoder.step.model
        if decoder.ranks is not None:
            raise ValueError(
                "cores driven by one process must divide a whole model: "
                f"got the part of one of {decoder.ranks.degree} processes"
            )
        if decoder.cores == 1:
            return cls(1, model, decoder)
        part = shard_model(model, Ranks(decoder.cores, 0, CORES))
        # Only shapes are needed here, which an all-reduce does not change.
        with override_all_reduce(CORES, lambda partial: partial):
            view = type(decoder).unchecked(part, decoder.shape, decoder.tree_widths, decoder.spans)
        view.progress = decoder.progress
        view.offer_rows(decoder.row_widths)
        view.copies_rows, view.copies_by_program = decoder.copies_rows, decoder.copies_by_program
        if decoder.fusion is not None:
            # Keeps the name of the decoder's own fusion, which may be a random digest.
            view.fusion = decoder.fusion.over(view.step, decoder.shape)
        return cls(decoder.cores, model, view)

    def weights(self, first: Mapping[str, Tensor], prefix: str) -> list[dict[str, Tensor]]:
        """
        The tensors of each core, all by the same names.

        Args:
            first: Tensors of core 0, non-persistent buffers included.

            prefix: Prefix of the names in *first* before the model's own names.
        """
        if self.degree == 1:
            return [dict(first)]
        return [
            {**first, **{prefix + name: tensor.detach() for name, tensor in own.items()}}
            for own in rank_weights(self.model, self.degree)
        ]
